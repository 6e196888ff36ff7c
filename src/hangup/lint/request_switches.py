"""What a request asks for if its client sets no switch: branches that only another value leads to are not reported.

A handler's parameter `enhance: bool = Query(False)`, or a field `stream: bool = True` of its body, has a declared default, and
so has `provider: str = "local"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hangup.lint.facts import FunctionFacts
from hangup.lint.guards import Needs

_WORD = r"^[ \t]+{name}[ \t]*:[^=\n]*=[ \t]*(?:Field\([ \t\n]*(?:default[ \t]*=[ \t]*)?)?[\"']([\w-]+)[\"']"
_FLAG = r"^[ \t]+{name}[ \t]*:[^=\n]*\bbool\b[^=\n]*=[ \t]*(?:Field\([ \t\n]*(?:default[ \t]*=[ \t]*)?)?(True|False)\b"
DEPTH = 3  # of bases


class RequestSwitches:
    """Judges what must be given against what the handlers of a project declare."""

    def __init__(self, naming: Callable[[str], Iterable[tuple[str, str]]]) -> None:
        """`naming` returns the files that have a word, with their texts."""
        self._naming = naming
        self._fields: dict[tuple[str, str, str, str], str | None] = {}

    def is_unasked(self, path: str, handler: FunctionFacts, needs: Needs) -> bool:
        """Return whether a handler in a file runs nothing that needs these, unless its client sets a switch."""
        return bool(needs) and all(any(self._is_against(path, handler, name) for name in wanted) for wanted in needs)

    def _is_against(self, file: str, handler: FunctionFacts, wanted: str) -> bool:
        holds = wanted[0] != "!"
        path, equals, words = wanted.partition("=")
        name, _, attribute = path.removeprefix("!").partition(".")
        owner = handler.parameters.get(name, "").rpartition(".")[2]
        if equals:
            text = self._field(file, owner, attribute, _WORD) if attribute else handler.texts.get(name)
            return text is not None and text not in words.split("|")
        if attribute:
            flag = self._field(file, owner, attribute, _FLAG)
            return flag is not None and (flag == "True") != holds
        value = handler.flags.get(name)
        return value is not None and value != holds

    def _field(self, file: str, owner: str, attribute: str, pattern: str, depth: int = DEPTH) -> str | None:
        """Return the default of a class's field as it is written: of the one in this file, or the only one of the project.

        A class without the field has it from its base.
        """
        key = (file, owner, attribute, pattern)
        if not owner.isidentifier() or depth <= 0:
            return None
        if key not in self._fields:
            found = [(where, *made) for where, text in self._naming(owner) for made in _classes(owner, text)]
            near = [made for made in found if made[0] == file] or found
            self._fields[key] = None
            if len(near) == 1:
                where, base, body = near[0]
                declared = re.search(pattern.format(name=re.escape(attribute)), body, re.M)
                inherited = None if declared else self._field(where, base, attribute, pattern, depth - 1)
                self._fields[key] = declared[1] if declared else inherited
        return self._fields[key]


def _classes(owner: str, text: str) -> list[tuple[str, str]]:
    """Return the first bases and the bodies of the classes with a name; the file is not parsed."""
    head = rf"^class {owner}\b(?:\([ \t]*(\w+))?[^\n]*:[^\n]*\n"
    return re.findall(head + r"((?:[ \t]+[^\n]*\n|[ \t]*\n|[)\]#][^\n]*\n)*)", text + "\n", re.M)
