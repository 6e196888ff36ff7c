"""The entry point of `hangup`: one parser, with one module per command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hangup import __version__
from hangup.errors import ConfigError, HangupError

if TYPE_CHECKING:
    from hangup.cli.parser import CliParser

# The module of each command, and what it does. Only the module of the given command is loaded, so that `hangup ps` need not
# load the gateway, and none for `hangup --help`.
COMMANDS = {
    "serve": ("serve", "run the gateway"),
    "ps": ("ps", "list the live calls"),
    "top": ("top", "show calls, backends, zombies, queue, jobs and tenants, refreshed every second"),
    "kill": ("kill", "stop calls, also in the engine, and verify"),
    "trace": ("trace", "show the timeline of one call"),
    "backends": ("backends", "list the backends"),
    "drain": ("backends", "stop sending new calls to a backend"),
    "undrain": ("backends", "send calls to a drained backend again"),
    "jobs": ("jobs", "list, show, cancel and submit batches, background responses and asynchronous calls"),
    "report": ("report", "show where every token went, and what it cost"),
    "engine": ("engine", "run the embedded engine on its own"),
    "demo": ("demo", "compare a plain proxy with hangup under clients that hang up; takes one minute"),
    "simulate": ("simulate", "simulate a configuration under load, in virtual time"),
    "lint": ("lint", "find inference in Python code that outlives its client"),
    "probe": ("probe", "find out whether an endpoint stops computing when its clients hang up"),
    "init": ("init", "write a configuration file for the engine that runs here"),
    "config": ("configs", "check or show the configuration; print an example or a schema"),
    "engines": ("engines", "list the supported engines"),
    "doctor": ("doctor", "inspect a running engine: what it is and how well hangup can protect it"),
    "docs": ("docs", "show the documentation"),
    "key": ("keys", "create API keys for tenants"),
    "standin": ("standin", "run a fake engine for tests: fixed speed, many APIs, faults on demand, exact counters"),
    "completion": ("completion", "print a script for tab completion in bash, zsh or fish"),
}

_EXTRA = "pip install 'hangup[gateway]'"
_PACKAGES = ("dns", "httptools", "numpy", "orjson", "prometheus_client", "starlette", "uvicorn", "uvloop")  # of that extra

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


def _version() -> str:
    """Return the version, and whether this is a compiled wheel: reports of faults need both."""
    core = os.path.join(os.path.dirname(os.path.dirname(__file__)), "core")  # noqa: PTH118, PTH120 - pathlib is not loaded yet
    compiled = any(name.startswith("call.") and not name.endswith(".py") for name in os.listdir(core))  # noqa: PTH208
    return f"hangup {__version__}{' (compiled)' if compiled else ''}"


def main(argv: Sequence[str] | None = None) -> int:
    _open_closed_streams()
    given = sys.argv[1:] if argv is None else list(argv)
    if given == ["--version"]:  # without the parser, which loads every command
        print(_version())
        return 0
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:  # without the parser, for the same reason
        from hangup.cli.parser import did_you_mean  # noqa: PLC0415 - `hangup --version` need not load it

        hint = did_you_mean(given[0], COMMANDS) or f"commands: {', '.join(COMMANDS)}"
        print(f"hangup: unknown command {_readable(given[0])!r}\n  hint: {hint}", file=sys.stderr)
        return 2
    if given[:1] == ["jobs"] and given[1:2] not in (["-h"], ["--help"]) and all(word.startswith("-") for word in given[1:2]):
        given.insert(1, "ls")  # the list, as with the other commands
    command = given[0] if given and given[0] in COMMANDS else None
    is_listed = command is None and all(map(find_spec, _PACKAGES))  # else the list says what is not installed
    parser = make_parser(command, load=not is_listed)
    asks_words = given[:3] == ["completion", "words", "--"]
    arguments = parser.parse_args(given[:2] if asks_words else given)
    if asks_words:
        arguments.words = given[3:]  # the parser would drop a -- that somebody wants to complete
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 2
    try:
        code: int = arguments.run(arguments)
        return code
    except ConfigError as error:
        for problem in error.problems:
            _complain(problem)
        return 2
    except HangupError as error:
        _complain(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _complain(problem: str) -> None:
    from hangup.terminal import complain  # noqa: PLC0415 - `hangup --version` need not load it

    complain(f"hangup: {_readable(problem)}")


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


def make_parser(command: str | None = None, *, load: bool = True) -> CliParser:
    """Return the parser of all commands, or of one; without `load`, it only lists them."""
    from hangup.cli.parser import CliParser  # noqa: PLC0415 - `hangup --version` need not load it

    parser = CliParser(
        prog="hangup",
        description="When the client hangs up, the GPU stops: a gateway for LLM inference.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", action=_Commands)
    if not load:
        for name in COMMANDS:
            commands.add_parser(name)
        return parser
    for module in dict.fromkeys(module for name, (module, _) in COMMANDS.items() if command in (None, name)):
        _add_parser(module, commands)
    return parser


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg] # noqa: SLF001 - the class behind add_subparsers
    def add_parser(self, name: str, **options: Any) -> Any:
        return super().add_parser(name, **{"help": COMMANDS[name][1], **options})


def _add_parser(module: str, commands: argparse._SubParsersAction[CliParser]) -> None:
    """Add the commands of one module, or stubs that name the missing package if only library and linter are installed."""
    try:
        loaded = importlib.import_module(f"hangup.cli.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "hangup":
            raise
        for name in (name for name, (home, _) in COMMANDS.items() if home == module):
            # The command's flags are unknown. The stub accepts anything, so that the error names the package, not a flag.
            stub = commands.add_parser(name, help=f"(not installed: {_EXTRA})", add_help=False, prefix_chars="\0")
            stub.add_argument("anything", nargs="*")
            stub.set_defaults(run=partial(_missing, name, error.name))
        return
    loaded.add_parser(commands)


def _missing(command: str, package: str, _: argparse.Namespace) -> int:
    raise HangupError(
        f"`hangup {command}` needs the gateway's dependencies, but {package} is not installed\n"
        f"  hint: {_EXTRA}, or without installing it: uvx --from 'hangup[gateway]' hangup {command}"
    )
