"""Whether a model is used by default, or something stands in for it until somebody chooses a model: a mock, or rules.

`if settings.provider == "openai": return OpenAIProvider()` makes none where the provider is "mock" unless somebody sets it.
That is certain if every construction in the project is under such a condition, and nothing else can make an instance. Where it
is not seen how a setting acts, `llm_provider: str = "mock"` still says that nothing is certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

from hangup.lint.constructed import Constructed
from hangup.lint.defaults import Defaults, is_settings_file
from hangup.lint.facts import CallFacts
from hangup.lint.names import Key, Names

_BOUND = "\t"  # between a name and what it stands for
_STAND_IN = re.compile(
    r"mock|fake|stub|dummy|echo|null|no_?op|offline|static|simulat|determin|template|rule|heuristic|disabled", re.I
)
_NAME = (
    r"(?!\w*(?:embed|image|video|audio|speech|voice|tts|rerank))"
    r"(?:\w+_)?(?:llm|ai|model|generation|chat|answer|agent|inference)_(?:\w+_)?(?:provider|mode|backend|engine|client)"
)
_NONE = r"(?:mock|fake|stub|dummy|deterministic|disabled|offline|simulated|none|off)"
# A setting for the model that is none: also os.getenv("LLM_PROVIDER", "mock"), Field(default="mock").
_SETTING = re.compile(
    rf"^[ \t]*(?:self\.)?{_NAME}[ \t]*(?::[^=\n]+)?=[ \t]*(?:[\w.]+\((?:[^()\n]*(?:,|default=))?[ \t]*)?[\"']{_NONE}[\"']",
    re.I | re.M,
)


# Folders of an application that its settings are in.
_INNER = frozenset({"app", "common", "conf", "config", "core", "settings", "shared", "src", "utils"})


class Chosen:
    def __init__(self, names: Names, defaults: Defaults, callers: Callable[[str], list[tuple[Key, int]]]) -> None:
        """`callers` returns the calls of something with a name."""
        self._names = names
        self._defaults = defaults
        self._callers = callers
        self._constructed = Constructed(names.source.naming)
        self._known: dict[tuple[str, str], bool] = {}

    def may_stand_in(self, path: str) -> bool:
        """Return whether the settings of a file's application say that something stands in for the model by default."""
        inside = self._names.source.inside(path)
        return any(_folder(file) == _folder(inside) or inside.startswith(_application(file)) for file in self._stand_ins)

    @cached_property
    def _stand_ins(self) -> list[str]:
        """Return the files of settings that name something in place of the model."""
        source = self._names.source
        files = ((file, source.inside(file)) for file in source.all_paths())
        return [file for full, file in files if is_settings_file(file) and _SETTING.search(source.text(full))]

    def is_unchosen(self, method: Key) -> bool:
        """Return whether the class of a method is not made by default, nor another one with the same base and method."""
        function = self._names.function(method)
        if not function.class_name or function.name == "__init__":
            return False
        if not self._is_unmade(method[0], function.class_name):
            return False
        bases = set(self._names.bases(method))
        others = [key for key in self._names.methods_named(function.name) if not bases.isdisjoint(self._names.bases(key))]
        classes = [(path, self._names.function((path, number)).class_name) for path, number in others]
        return all(_STAND_IN.search(name) or self._is_unmade(path, name) for path, name in classes)

    def _is_unmade(self, path: str, owner: str) -> bool:
        """Return whether a class is not made by default."""
        key = (path, owner)
        if key not in self._known:
            self._known[key] = False  # for a condition that leads to itself
            self._known[key] = self._is_off_everywhere(*key)
        return self._known[key]

    def _is_off_everywhere(self, path: str, owner: str) -> bool:
        declared = self._names.classes[path].get(owner)
        if declared is None or not declared.bases:
            return False  # what stands in for it has a base in common with it
        if self._made(path, owner) is None:  # as most: the files that were read make it
            return False
        self._names.source.read_users(owner, method=False)
        made = self._made(path, owner)
        calls = self._constructed.calls(owner, path, any_base=True) if made else None
        return calls is not None and len(calls) == made

    def _made(self, path: str, owner: str) -> int | None:
        """Return how many calls of the files that were read make a class; None if one of them is made by default."""
        made = 0
        for caller, index in self._callers(owner):
            call = self._names.function(caller).calls[index]
            value = self._names.find(*caller, call.ref)
            if value is not None and (value.kind, value.path, value.name) == ("class", path, owner):
                if not self._is_off(call, caller[0]):
                    return None
                made += 1
        return made

    def _is_off(self, call: CallFacts, path: str) -> bool:
        return any(self._defaults.rules_out(_not_given(switch), path) for switch in call.switches)


def _folder(path: str) -> str:
    return path.partition("/")[0] if "/" in path else ""


def _application(settings: str) -> str:
    """Return how the paths of an application's files begin, by that of its settings: `backend/` for backend/core/config.py."""
    folders = settings.split("/")[:-1]
    while folders and folders[-1] in _INNER:
        folders.pop()
    return "".join(f"{folder}/" for folder in folders)


def _not_given(condition: str) -> str:
    """Return a condition for who gives nothing: `provider or settings.provider` is the setting."""
    head, *bound = condition.split("\n")
    for index, line in enumerate(bound):
        name, _, value = line.partition(_BOUND)
        bound[index] = name + _BOUND + re.sub(rf"(?<![\w.]){re.escape(name)}\b", "None", value)
    return "\n".join([head, *bound])
