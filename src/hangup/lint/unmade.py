"""Calls that never run what they name: the function does not take what they give it, or nobody awaits its coroutine.

Only what is certain counts: the call can mean no other function, and no decorator and no class below changes that function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePath

from hangup.lint.facts import CallFacts, FileFacts
from hangup.lint.guards import fits, takes
from hangup.lint.names import Key, Names

_DROPPING = frozenset({"fastapi", "starlette", "flask"})  # frameworks that do not await what an async handler returns


class Unmade:
    def __init__(self, names: Names, naming: Callable[[str], Iterable[tuple[str, str]]]) -> None:
        """`naming` returns the files that have a word, with their texts."""
        self._names = names
        self._naming = naming
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
        setting = re.compile(
            rf"([\w.]+)\.{name}[ \t]*(?::[^=\n]+)?=(?!=)|setattr\(\s*([\w.]+)\s*,\s*[\"']{name}[\"']|__builtins__\[.{name}.\]"
        )
        for _, text in self._naming(name):
            for found in setting.finditer(text):
                owner = (found[1] or found[2] or "builtins").rpartition(".")[2]
                if owner in {module, "builtins", "__builtins__"} or re.search(rf"\b{module}\s+as\s+{owner}\b", text):
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
            self._only[key] = alone and not (function.class_name and names.is_overridden(key))
        return self._only[key]
