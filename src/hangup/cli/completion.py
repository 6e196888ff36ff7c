"""`hangup completion`: prints a script by which a shell completes commands, options, values and ids."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Iterator
from typing import Any

from hangup.cli.parser import CliParser, commands_of
from hangup.errors import HangupError

_BASH = """\
_hangup() {
    local IFS=$'\\n' words
    words=$(hangup completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1)
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _hangup hangup
"""
_ZSH = """\
#compdef hangup
_hangup() {
    local -a found
    local word
    for word in ${(f)"$(hangup completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"}; do
        found+=("${${word%%$'\\t'*}//:/\\\\:}:${word#*$'\\t'}")
    done
    if (( ${#found} )); then _describe hangup found; else _files; fi
}
if [[ $funcstack[1] == _hangup ]]; then _hangup; else compdef _hangup hangup; fi
"""
_FISH = """\
complete -c hangup -f -a "(hangup completion words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)"
complete -c hangup -n "__fish_seen_subcommand_from serve lint config init submit simulate" -F
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_EXAMPLES = """\
examples:
  source <(hangup completion bash)                                        now; or write it to a file:
  hangup completion bash > ~/.local/share/bash-completion/completions/hangup
  hangup completion zsh > "${fpath[1]}/_hangup"
  hangup completion fish > ~/.config/fish/completions/hangup.fish
"""
_ASK_S = 1.0  # a shell waits for it


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        description="Prints a script by which the shell completes commands, options, values, and ids of live calls.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=[*_SCRIPTS, "words"], metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS).required = False  # else an error would name it
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.shell != "words":
        print(_SCRIPTS[arguments.shell], end="")
        return 0
    for word, help in candidates(arguments.words):
        print(f"{word}\t{help}")
    return 0


def candidates(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield what may stand in the place of the last word, with a short explanation."""
    from hangup.cli.main import COMMANDS, make_parser  # noqa: PLC0415 - `main` imports this module

    *before, last = words or [""]
    if not before:
        yield from ((name, summary) for name, (_, summary) in COMMANDS.items() if name.startswith(last))
        return
    if before[0] not in COMMANDS:
        return
    parser: argparse.ArgumentParser = make_parser(before[0])
    path: list[str] = []
    for word in before:
        inner = commands_of(parser).get(word)
        if inner is not None:
            parser, path = inner, [*path, word]
    yield from ((word, help) for word, help in _words(parser, path, before[-1], last) if word.startswith(last))


def _words(parser: argparse.ArgumentParser, path: list[str], previous: str, last: str) -> Iterator[tuple[str, str]]:
    rare = parser.rare if isinstance(parser, CliParser) and not last.startswith("--") else []
    options = {name: action for action in parser._actions for name in action.option_strings}  # noqa: SLF001
    action = options.get(previous)
    if action is not None and action.nargs != 0:  # its value
        yield from ((str(value), "") for value in action.choices or _values_of(action))
        return
    yield from ((name, "") for name in commands_of(parser))
    if last.startswith("-"):
        for name, option in options.items():
            if option not in rare and option.help != argparse.SUPPRESS:
                yield name, _first_sentence(option.help or "")
    else:
        yield from ((found, "") for found in _live_names(path))
        for positional in parser._actions:  # noqa: SLF001
            if not positional.option_strings and isinstance(positional.choices, list):
                yield from ((str(value), "") for value in positional.choices)


def _values_of(action: argparse.Action) -> list[str]:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return metavar.split("|") if "|" in metavar else []


def _first_sentence(text: str) -> str:
    return text.partition(" (")[0].partition(". ")[0].replace("%%", "%")


def _live_names(path: list[str]) -> list[str]:
    """Return the names that a running gateway knows and that the command takes."""
    from hangup.cli import client  # noqa: PLC0415 - only where ids are completed

    admin = client.Admin(argparse.Namespace(admin=None, json=True))
    with contextlib.suppress(HangupError), contextlib.redirect_stderr(io.StringIO()):
        if path in (["kill"], ["trace"]):
            return list(admin.request("GET", "/api/ids", _ASK_S, live=path == ["kill"])["ids"])
        if path in (["drain"], ["undrain"]):
            return [row["name"] for row in admin.request("GET", "/api/backends", _ASK_S)["backends"]]
        if path in (["jobs", "show"], ["jobs", "cancel"]):
            return [row["id"] for row in admin.request("GET", "/api/jobs", _ASK_S, limit=100)["jobs"]]
    return []
