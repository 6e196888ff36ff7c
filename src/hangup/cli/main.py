"""`hangup`: one parser, one module per command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from hangup import __version__
from hangup.cli import (
    backends,
    configs,
    demo,
    doctor,
    engine,
    engines,
    jobs,
    keys,
    kill,
    lint,
    ps,
    report,
    serve,
    simulate,
    standin,
    top,
    trace,
)
from hangup.errors import ConfigError, HangupError

_EXAMPLES = """\
examples:
  hangup serve                                      try it: the gateway with its embedded engine
  hangup serve --upstream http://127.0.0.1:8000     in front of an engine
  hangup ps                                         which calls are live, whose, and what they wait for
  hangup config show --config hangup.toml           every setting in effect, and where it comes from

documentation: docs/ in the source, starting with docs/configuration.md
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 2
    try:
        code: int = arguments.run(arguments)
        return code
    except ConfigError as error:
        for problem in error.problems:
            print(f"hangup: {problem}", file=sys.stderr)
        return 2
    except HangupError as error:
        print(f"hangup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hangup",
        description="When the client hangs up, the GPU stops: a gateway for LLM inference.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hangup {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    seeing = (ps, top, kill, trace, backends, jobs, report)
    for command in (serve, *seeing, engine, demo, simulate, lint, configs, engines, doctor, keys, standin):
        command.add_parser(commands)
    return parser
