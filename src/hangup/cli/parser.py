"""`CliParser`: an argparse parser whose errors are short and guess what was meant, and whose help may be short."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from hangup.terminal import complain

_INVALID_CHOICE = re.compile(
    r"^(?:argument (?P<what>[^:]+): )?invalid choice: '(?P<given>.*)' \(choose from (?P<valid>.*)\)$", re.S
)
_VALID_SHOWN = 12


def did_you_mean(given: str, valid: Iterable[str]) -> str:
    """Return a question that names what was probably meant; "" if nothing is close."""
    near = difflib.get_close_matches(given, list(valid), 1, 0.6)
    return f"did you mean {near[0]}?" if near else ""


class CliParser(argparse.ArgumentParser):
    """Options in `rare` are shown by --help-all only."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rare: list[argparse.Action] = []
        self._all = False

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in a line or two, without the whole usage."""
        message = re.sub(r"invalid _?\w+ value: ", "invalid value: ", message)  # it names a function of ours
        found = _INVALID_CHOICE.match(message)
        if found:
            message, hint = _choice_problem(found)
        else:
            hint = self._hint_on_options(message)
        hint = hint or f"`{self.prog} --help` shows what is possible"
        complain(f"hangup: {message}\n  hint: {hint}")
        raise SystemExit(2)

    def _hint_on_options(self, message: str) -> str:
        if not message.startswith("unrecognized arguments: "):
            return ""
        for given in message.removeprefix("unrecognized arguments: ").split():
            name = given.partition("=")[0]
            near = did_you_mean(name, options_of(self)) if name.startswith("-") else ""
            if near:
                return near
        return ""

    def add_rare(self, before: int) -> None:
        """Leave the options that were added since there were `before` of them to --help-all."""
        self.rare += self._actions[before:]

    def format_help(self) -> str:
        return self._without_rare(super().format_help)

    def format_usage(self) -> str:
        return self._without_rare(super().format_usage)

    def _without_rare(self, format: Any) -> str:
        if self._all or not self.rare:
            return str(format())
        texts = [action.help for action in self.rare]
        for action in self.rare:
            action.help = argparse.SUPPRESS
        try:
            return str(format())
        finally:
            for action, text in zip(self.rare, texts, strict=True):
                action.help = text

    def print_all_help(self) -> None:
        self._all = True
        self.print_help()


class HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="show every setting, and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, CliParser)
        parser.print_all_help()
        parser.exit()


def _choice_problem(found: re.Match[str]) -> tuple[str, str]:
    valid = re.findall(r"'([^']*)'", found["valid"]) or [part.strip() for part in found["valid"].split(",")]
    what = "command" if found["what"] in (None, "COMMAND", "ACTION") else found["what"]
    near = did_you_mean(found["given"], valid)
    listed = ", ".join(valid[:_VALID_SHOWN]) + (", …" if len(valid) > _VALID_SHOWN else "")
    return f"{what}: unknown value {found['given']!r}" if what != "command" else f"unknown command {found['given']!r}", (
        near or f"valid: {listed}"
    )


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the option names of a parser and of its commands."""
    for action in parser._actions:  # noqa: SLF001 - see above
        yield from action.option_strings
    for inner in commands_of(parser).values():
        yield from options_of(inner)


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's commands, by name."""
    for action in parser._actions:  # noqa: SLF001 - see above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}
