"""Settings that nothing declares: reading one raises, and what comes after it is not run.

Only what is certain counts: the settings are an instance of a class of the project, in the same file, that takes no others in,
and the name is nowhere but where it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hangup.lint.facts import CallFacts
from hangup.lint.names import Names

_READ = re.compile(r"(?:not |\()*(\w+)\.(\w+)")  # what a condition evaluates first
_OPEN = re.compile(
    r"__getattr|setattr\(|__dict__|__slots__|globals\(|vars\(|import[ \t]*\*|exec\(|[\"']?\bextra[\"']?\s*[=:]\s*[\"']allow"
    r"|Extra\.allow"
)
_PYDANTIC = re.compile(r"^[ \t]*from pydantic[\w.]* import [^\n]*\b(?:BaseSettings|BaseModel)\b", re.M)
_PLAIN = frozenset({"", "object", "BaseSettings", "BaseModel"})
_INHERITED = re.compile(r"_|model_|(?:dict|json|copy|schema|construct|validate|parse_\w+|fields)$")


class Undeclared:
    def __init__(self, names: Names, text: Callable[[str], str], naming: Callable[[str], Iterable[tuple[str, str]]]) -> None:
        """`naming` returns the files that have a word, with their texts."""
        self._names = names
        self._text = text
        self._naming = naming
        self._known: dict[tuple[str, str, str], bool] = {}

    def stops(self, call: CallFacts, path: str) -> bool:
        """Return whether a call is not made because a setting in a condition around it, or in its arguments, raises."""
        given = [value.partition("?")[2] for value in call.given if "?" in value]
        return bool(call.switches or given) and any(self._raises(written, path) for written in (*call.switches, *given))

    def _raises(self, written: str, path: str) -> bool:
        head = written.partition("\n")[0]
        read = _READ.match(head)
        if read is None or " if " in head or _INHERITED.match(read[2]):
            return False
        key = (read[1], read[2], path)
        if key not in self._known:
            self._known[key] = self._is_undeclared(*key)
        return self._known[key]

    def _is_undeclared(self, owner: str, name: str, path: str) -> bool:
        module, _, made = self._names.files[path].imports.get(owner, "").rpartition(".")
        file = self._names.file_of(path, module, made) if module.strip(".") else ""
        return (
            bool(file)
            and _holds_only_declared(made, self._text(file))
            and _only_imported(owner, self._text(path))
            and all(_only_read(name, text) for _, text in self._naming(name))
        )


def _only_imported(name: str, text: str) -> bool:
    """Return whether a file gives nothing else this name: no variable, and no parameter."""
    return re.search(rf"\b(?<!\.){name}[ \t]*(?:=(?!=)|:)|[(,][ \t]*{name}[ \t]*[,)]", text) is None


def _only_read(name: str, text: str) -> bool:
    """Return whether a file only reads attributes with this name."""
    return re.search(rf"(?<![\w.]){name}\b|\.{name}\s*(?:=(?!=)|:(?!=)\s*\w+\s*=)", text) is None


def _holds_only_declared(name: str, text: str) -> bool:
    """Return whether a file makes, under this name, an instance of a class of its own that takes no other attributes in."""
    makers = re.findall(rf"^{name}[ \t]*(?::[^=\n]+)?=[ \t]*(\w+)\(", text, re.M)
    if len(makers) != 1 or _OPEN.search(text) is not None:
        return False
    returned = re.search(rf"^def {makers[0]}\([^)]*\)[ \t]*->[ \t]*[\"']?(\w+)", text, re.M)
    classes = re.findall(rf"^(@\w[^\n]*\n)?class {returned[1] if returned else makers[0]}(?:\(([^)]*)\))?:", text, re.M)
    if len(classes) != 1:
        return False
    decorator, bases = classes[0]
    named = {base.strip() for base in bases.split(",")}
    if not named <= _PLAIN or (decorator and not decorator.startswith("@dataclass")):
        return False
    return named <= {"", "object"} or _PYDANTIC.search(text) is not None
