"""What a request asks for if its client sets no switch: branches that only another value leads to are not reported.

A handler's parameter `enhance: bool = Query(False)`, or a field `stream: bool = True` of its body, has a declared default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hangup.lint.facts import FunctionFacts
from hangup.lint.guards import Needs

_FLAG = r"^[ \t]+{name}[ \t]*:[^=\n]*\bbool\b[^=\n]*=[ \t]*(?:Field\([ \t\n]*(?:default[ \t]*=[ \t]*)?)?(True|False)\b"


class RequestSwitches:
    """Judges what must be given against what the handlers of a project declare."""

    def __init__(self, naming: Callable[[str], Iterable[tuple[str, str]]]) -> None:
        """`naming` returns the files that have a word, with their texts."""
        self._naming = naming
        self._flags: dict[tuple[str, str], bool | None] = {}

    def is_unasked(self, handler: FunctionFacts, needs: Needs) -> bool:
        """Return whether a handler runs nothing that needs these, unless its client sets a switch."""
        return bool(needs) and all(any(self._is_against(handler, name) for name in wanted) for wanted in needs)

    def _is_against(self, handler: FunctionFacts, wanted: str) -> bool:
        holds = wanted[0] != "!"
        name, _, attribute = wanted.removeprefix("!").partition(".")
        value = self._field(handler.parameters.get(name, ""), attribute) if attribute else handler.flags.get(name)
        return value is not None and value != holds

    def _field(self, given: str, attribute: str) -> bool | None:
        """Return the default of a field of a class, if the project has one class of that name."""
        owner = given.rpartition(".")[2]
        key = (owner, attribute)
        if not owner.isidentifier():
            return None
        if key not in self._flags:
            texts = [text for _, text in self._naming(owner)]
            bodies = [body for text in texts for body in _bodies(owner, text)]
            found = re.search(_FLAG.format(name=re.escape(attribute)), bodies[0], re.M) if len(bodies) == 1 else None
            self._flags[key] = None if found is None else found[1] == "True"
        return self._flags[key]


def _bodies(owner: str, text: str) -> list[str]:
    """Return the bodies of the classes with a name; the file is not parsed."""
    return re.findall(rf"^class {owner}\b[^\n]*:[^\n]*\n((?:[ \t]+[^\n]*\n|[ \t]*\n|[)\]#][^\n]*\n)*)", text + "\n", re.M)
