"""Calls that never run what they name: the function does not take what they give it, or nobody awaits its coroutine.

Only what is certain counts: the call can mean no other function, and no decorator and no class below changes that function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import PurePath

from hangup.lint.facts import CallFacts, FileFacts
from hangup.lint.guards import fits, takes
from hangup.lint.names import DEPTH, Key, Names

_DROPPING = frozenset({"fastapi", "starlette", "flask"})  # frameworks that do not await what an async handler returns

_OWNER = re.compile(
    r"""(\w+)(?:\.|\s*,\s*["']|\[["'])\Z"""
)  # whatever a name is set on: `module.`, `setattr(module, "`, `module["`
_SETS = re.compile(r"""["']|[ \t]*(?::[^=\n]+)?=(?!=)""")
_BEFORE = frozenset(".\"'")
OWNER_MAX = 80  # characters of a name


class Unmade:
    def __init__(self, names: Names) -> None:
        self._names = names
        self._only: dict[Key, bool] = {}

    def drop_unreached(self, path: str, facts: FileFacts) -> None:
        """Take the calls out of a file's facts that come after a name that is defined nowhere."""
        missing = {name for name in facts.undefined if not self._is_set_outside(path, name)}
        for function in facts.functions if missing else ():
            function.calls = [call for call in function.calls if call.after not in missing]
            function.spawns = [spawn for spawn in function.spawns if spawn.after not in missing]
        if facts.ending not in missing:
            facts.ending = ""

    def _is_set_outside(self, path: str, name: str) -> bool:
        """Return whether another file gives a name to this module, or to all: `routes.settings = Settings()`."""
        file = PurePath(path)
        module = file.parent.name if file.stem == "__init__" else file.stem
        for where, text in self._names.source.naming_beside(name, (module, "builtins", "__builtins__")):
            for place in _attributes(name, text) if where != path else ():
                owner = _OWNER.search(text, max(0, place - OWNER_MAX), place)
                if owner is None or not _SETS.match(text, place + len(name)):
                    continue
                if owner[1] in {module, "builtins", "__builtins__", "__dict__"} or f"{module} as {owner[1]}" in text:
                    return True
        return False

    def is_unmade(self, caller: Key, call: CallFacts, key: Key, framework: Callable[[Key], str]) -> bool:
        """Return whether a call certainly does not run this function; `framework` returns who calls a handler."""
        names = self._names
        callee = names.function(key)
        if fits(call, callee) and takes(call, callee):
            lazy = callee.is_async and not callee.yields
            if not lazy or callee.decorated or not self._is_dropped(caller, call, framework):
                return False
        if not names.is_certain(*caller, call.ref) or not self._is_only_one(key):
            return False
        receiver = call.ref.rpartition(".")[0]
        owner = names.find(*caller, receiver) if receiver and callee.class_name else None
        return owner is None or owner.kind != "class"  # its methods are given the instance, too

    def _is_dropped(self, caller: Key, call: CallFacts, framework: Callable[[Key], str]) -> bool:
        """Return whether nothing awaits what a call of an async function returns."""
        function = self._names.function(caller)
        if call.use == "return":
            return function.is_async and not function.yields and framework(caller) in _DROPPING
        return call.use == "drop"

    def _is_only_one(self, key: Key) -> bool:
        """Return whether nothing else has a function's name where it is defined, and no class below has the method."""
        if key not in self._only:
            names, function = self._names, self._names.function(key)
            same = [f for f in names.files[key[0]].functions if (f.class_name, f.name) == (function.class_name, function.name)]
            alone = len(same) == 1 and function.name not in names.files[key[0]].functions[0].assigned
            self._only[key] = alone and not (function.class_name and self._is_overridden(key))
        return self._only[key]

    def _is_overridden(self, key: Key) -> bool:
        """Return whether a class below that of a method has a method of its own with that name."""
        names, method = self._names, self._names.function(key)
        others = [k for k in names.methods_named(method.name) if k != key]
        return any(method.class_name in self._above(k[0], names.function(k).class_name, DEPTH) for k in others)

    def _above(self, path: str, name: str, depth: int) -> set[str]:
        """Return the names of the classes above a class, as far as they are known."""
        owner = self._names.classes[path].get(name)
        found: set[str] = set()
        for base in owner.bases if owner is not None and depth > 0 else ():
            plain = base.removesuffix("[]")
            found.add(plain.rpartition(".")[2])
            parent = self._names.find(path, 0, plain)
            if parent is not None and parent.kind == "class":
                found |= self._above(parent.path, parent.name, depth - 1)
        return found


def _attributes(name: str, text: str) -> Iterator[int]:
    """Yield the places of a name in a text that come after a dot or a quote."""
    place = text.find(name)
    while place >= 0:
        if text[place - 1 : place] in _BEFORE:
            yield place
        place = text.find(name, place + len(name))
