"""The entry point of `hangup`: one parser, with one module per command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hangup import __version__
from hangup.errors import ConfigError, HangupError

if TYPE_CHECKING:
    from hangup.cli.parser import CliParser

# The module of each command. Only the module of the given command is loaded, so that `hangup ps` need not load the gateway.
COMMANDS = {
    "serve": "serve",
    "ps": "ps",
    "top": "top",
    "kill": "kill",
    "trace": "trace",
    "backends": "backends",
    "drain": "backends",
    "undrain": "backends",
    "jobs": "jobs",
    "report": "report",
    "engine": "engine",
    "demo": "demo",
    "simulate": "simulate",
    "lint": "lint",
    "probe": "probe",
    "init": "init",
    "config": "configs",
    "engines": "engines",
    "doctor": "doctor",
    "docs": "docs",
    "key": "keys",
    "standin": "standin",
    "completion": "completion",
}

_EXTRA = "pip install 'hangup[gateway]'"

_EXAMPLES = """\
examples:
  hangup serve                                      run the gateway with its embedded engine
  hangup serve --upstream http://127.0.0.1:8000     in front of an engine
  hangup init                                       write hangup.toml for the engine that runs here
  hangup ps                                         list live calls
  hangup probe http://127.0.0.1:8000                find out whether an engine or gateway stops when clients leave
  hangup config show --config hangup.toml           show every setting in effect and its origin

documentation: `hangup docs`, or https://github.com/hangup-dev/hangup/tree/main/docs
"""


def main(argv: Sequence[str] | None = None) -> int:
    _open_closed_streams()
    given = sys.argv[1:] if argv is None else list(argv)
    if given == ["--version"]:  # without the parser, which loads every command
        print(f"hangup {__version__}")
        return 0
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:  # without the parser, for the same reason
        from hangup.cli.parser import did_you_mean  # noqa: PLC0415 - `hangup --version` need not load it

        hint = did_you_mean(given[0], COMMANDS) or f"commands: {', '.join(COMMANDS)}"
        print(f"hangup: unknown command {_readable(given[0])!r}\n  hint: {hint}", file=sys.stderr)
        return 2
    parser = make_parser(given[0] if given and given[0] in COMMANDS else None)
    arguments = parser.parse_args(given)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 2
    try:
        code: int = arguments.run(arguments)
        return code
    except ConfigError as error:
        for problem in error.problems:
            print(f"hangup: {_readable(problem)}", file=sys.stderr)
        return 2
    except HangupError as error:
        print(f"hangup: {_readable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _readable(text: str) -> str:
    """Escape what a terminal would obey: an error may quote what a server answered. Lines stay lines."""
    from hangup.cli.table import printable  # noqa: PLC0415 - `hangup --version` need not load it

    return "\n".join(map(printable, text.split("\n")))


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that the parent closed (`>&-`): else sockets would get its number, and libuv
    aborts the process when such a socket is closed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number, which is this one
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))


def make_parser(command: str | None = None) -> CliParser:
    """Return the parser of all commands, or of one."""
    from hangup.cli.parser import CliParser  # noqa: PLC0415 - `hangup --version` need not load it

    parser = CliParser(
        prog="hangup",
        description="When the client hangs up, the GPU stops: a gateway for LLM inference.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hangup {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in dict.fromkeys(COMMANDS.values() if command is None else [COMMANDS[command]]):
        _add_parser(module, commands)
    return parser


def _add_parser(module: str, commands: argparse._SubParsersAction[CliParser]) -> None:
    """Add the commands of one module, or stubs that name the missing package if only library and linter are installed."""
    try:
        loaded = importlib.import_module(f"hangup.cli.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "hangup":
            raise
        for name in (name for name, home in COMMANDS.items() if home == module):
            # The command's flags are unknown. The stub accepts anything, so that the error names the package, not a flag.
            stub = commands.add_parser(name, help=f"(not installed: {_EXTRA})", add_help=False, prefix_chars="\0")
            stub.add_argument("anything", nargs="*")
            stub.set_defaults(run=partial(_missing, name, error.name))
        return
    loaded.add_parser(commands)


def _missing(command: str, package: str, _: argparse.Namespace) -> int:
    raise HangupError(f"`hangup {command}` needs the gateway's dependencies, but {package} is not installed\n  hint: {_EXTRA}")
