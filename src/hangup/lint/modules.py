"""Which file an import means, in a repository that may hold several applications, or copies of one.

Python looks for a module in a few folders, the roots, of which a file's own are above it. Where none of these has the module,
that of another application in the repository may be meant, if its folder is a root as well. But a package is looked for only
once: if one of the file's own roots has it without the module, the import fails, whatever other roots have.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from pathlib import PurePath

Parts = tuple[str, ...]
_DYNAMIC = re.compile(r"import[ \t]*\*|__getattr__|__path__|globals\(|exec\(|setattr\(|sys\.modules|import_module|lazy")


class Modules:
    """Files by the names of their modules."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[tuple[Parts, str]]] = defaultdict(list)  # the last part of the name -> files
        self.at: dict[Parts, str] = {}

    def add(self, path: str) -> Parts:
        parts = PurePath(path).with_suffix("").parts
        if parts and parts[-1] == "__init__":
            parts = parts[:-1]
        if parts:
            self.by_name[parts[-1]].append((parts, path))
            self.at[parts] = path
        return parts

    def remove(self, parts: Parts, path: str) -> None:
        self.by_name[parts[-1]] = [found for found in self.by_name[parts[-1]] if found[1] != path]
        self.at.pop(parts, None)

    def fitting(self, wanted: Parts) -> list[tuple[Parts, str]]:
        """Return the files whose names end with these parts."""
        return [found for found in self.by_name.get(wanted[-1], ()) if found[0][-len(wanted) :] == wanted]

    def relative(self, name: str, importer: str) -> str:
        """Return the file of a module whose name begins with dots, or "" if there is none."""
        level = len(name) - len(name.lstrip("."))
        base = folder_of(importer)
        base = base[: len(base) - (level - 1)] if level > 1 else base
        return self.at.get((*base, *parts_of(name)), "")

    def above(self, wanted: Parts, near: Parts) -> str:
        """Return the file of a module in a folder, or in the nearest one above it that has one."""
        for size in range(len(near), -1, -1):
            if found := self.at.get(near[:size] + wanted):
                return found
        return ""


class Roots:
    """Finds modules in the roots of who imports them."""

    def __init__(
        self,
        every: Modules,
        text: Callable[[str], str],
        naming: Callable[[str], Iterable[tuple[str, str]]],
        imports: Callable[[str], Iterable[str]],
    ) -> None:
        """`every` has all files; `naming` returns those with a word, and their texts; `imports` what a file imports."""
        self.every = every
        self._text = text
        self._naming = naming
        self._imports = imports
        self._failing: dict[tuple[Parts, str], bool] = {}

    def find(self, modules: Modules, name: str, importer: str) -> str:
        """Return the file, of some, of a module that a file imports; "" if there is none, or another one is meant."""
        if name.startswith("."):
            return modules.relative(name, importer)
        wanted = parts_of(name)
        fitting = modules.fitting(wanted) if wanted else []
        if not fitting:
            return ""
        near = folder_of(importer)
        if own := self.every.above(wanted, near):
            return own if modules.above(wanted, near) == own else ""
        if self._fails(wanted, importer):
            return ""
        return max(fitting, key=lambda found: (shared(near, found[0]), -len(found[0])))[1]

    def fails(self, name: str, importer: str) -> bool:
        """Return whether importing a module always raises, though other roots than the importer's own have it."""
        wanted = parts_of(name)
        if len(wanted) < 2 or name.startswith(".") or not self.every.fitting(wanted):
            return False
        return not self.every.above(wanted, folder_of(importer)) and self._fails(wanted, importer)

    def _fails(self, wanted: Parts, importer: str) -> bool:
        """Return the same, for a module that is in none of the importer's roots."""
        key = (wanted, importer)
        if key not in self._failing:
            near = folder_of(importer)
            roots = (near[:size] for size in range(len(near), -1, -1))
            root = next((r for r in roots if r + wanted[:1] in self.every.at and self._is_root(r, importer)), None)
            self._failing[key] = (
                len(wanted) > 1
                and root is not None
                and self._is_incomplete(root, wanted)
                and not any(self._is_added(parts[: -len(wanted)], root) for parts, _ in self.every.fitting(wanted))
            )
        return self._failing[key]

    def _is_root(self, folder: Parts, importer: str) -> bool:
        """Return whether a folder is one of the importer's roots: no package itself, or others are imported from there."""
        at = self.every.at
        if not at.get(folder, "").endswith("__init__.py"):
            return True
        others = (tuple(name.split(".")) for name in self._imports(importer) if not name.startswith("."))
        return any(folder + parts[:size] in at for parts in others for size in range(2, len(parts) + 1))

    def _is_incomplete(self, root: Parts, wanted: Parts) -> bool:
        """Return whether the package in a root has nothing of the name of its missing part, and makes no names."""
        size = next(size for size in range(len(wanted) - 1, 0, -1) if root + wanted[:size] in self.every.at)
        return self.lacks(self.every.at[root + wanted[:size]], wanted[size])

    def lacks(self, path: str, name: str) -> bool:
        """Return whether a module has nothing of this name, and makes no names when it runs."""
        written = self._text(path)
        return name not in written and _DYNAMIC.search(written) is None

    def _is_added(self, other: Parts, root: Parts) -> bool:
        """Return whether a file of an application, or above it, may add another folder to Python's path."""
        apart = [re.compile(rf"[\"'/\\]{re.escape(name)}[\"'/\\]") for name in other[shared(other, root) :]]
        return any(
            shared(folder, root) == min(len(folder), len(root)) and all(name.search(text) for name in apart)
            for folder, text in self._adding
        )

    @cached_property
    def _adding(self) -> list[tuple[Parts, str]]:
        """Return the files that change Python's path, as their folders and texts."""
        return [(folder_of(path), text) for path, text in self._naming("path") if "sys.path" in text]


def lacks_method(text: str, class_name: str, method: str) -> bool:
    """Return whether a class in a file has no base, and nothing in the file gives it this method."""
    if re.search(rf"^class {class_name}(?:\(\s*(?:object)?\s*\))?:", text, re.M) is None:
        return False
    given = rf"\b(?:def |self\.|cls\.){method}\b|^[ \t]+{method}\s*[:=]|[\"']{method}[\"']|__getattr|setattr\(|__dict__"
    return re.search(given, text, re.M) is None


@cache
def folder_of(path: str) -> Parts:
    return PurePath(path).parent.parts


@cache
def parts_of(name: str) -> Parts:
    return tuple(part for part in name.split(".") if part)


def shared(one: Parts, other: Parts) -> int:
    """Return how many folders two paths share."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def hides_module(package: str, module: str) -> bool:
    """Return whether the text of a package imports an object from its module that has the module's name."""
    if f"{module} import" not in package:  # which is found much faster than the pattern
        return False
    return re.search(rf"from\s+[\w.]*\.{module}\s+import\s+(?:\([^)]*|[^\n#]*)\b{module}\b", package) is not None
