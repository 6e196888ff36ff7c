"""Finds what a reference stands for, in all files of a project, without importing any: self.rag.query is RagService.query.

A name leads to what was assigned, annotated or imported; a class to its attributes; a call to what the function returns.
Where that ends at an object of unknown type, the name of its method decides, if the project has few methods with that name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import PurePath

from hangup.lint.facts import ClassFacts, FileFacts, FunctionFacts
from hangup.lint.files import SourceFiles
from hangup.lint.modules import Modules, Roots, hides_module, lacks_method, shared
from hangup.lint.text import words_in
from hangup.lint.value import Value

Key = tuple[str, int]  # a function: path of the file, number in it
MANY = 64  # methods with one name, above which the name says nothing
DEPTH = 8  # of assignments, imports and returns that are followed

_SEGMENT = re.compile(r"\(\)|\[\]|\.?[^.()\[\]]+")
# Methods of many libraries: on an object of unknown type they say nothing.
ANYONES = frozenset(
    "get post put delete run send close start stop call execute submit read write open load save add create update list connect"
    " init setup main wait next filter search find fetch parse validate emit publish put_nowait handle dispatch commit process"
    " predict invoke stream query request forward embed".split()
)


class Names:
    def __init__(self, source: SourceFiles) -> None:
        self.source = source
        self.files = source.read
        self.modules = Modules()
        self.parts: dict[str, tuple[str, ...]] = {}
        self.methods: dict[str, list[Key]] = defaultdict(list)
        self.members: dict[str, dict[tuple[str, str], int]] = {}  # path -> (class or "", name) -> number
        self.nested: dict[str, dict[tuple[int, str], int]] = {}
        self.classes: dict[str, dict[str, ClassFacts]] = {}
        self._cache: dict[tuple[str, int, str], Value | None] = {}
        self._states: dict[str, list[tuple[str, int, str]]] = defaultdict(list)  # app.state.x -> what it is set to, and where
        self._choices: dict[tuple[str, int, str], bool] = {}
        self._concrete_methods: dict[str, tuple[int, list[Key]]] = {}  # name -> how many there were, and those with a body
        self._rivals: dict[tuple[str, frozenset[str]], int] = {}
        for path in source.paths():
            self.parts[path] = self.modules.add(path)

    def add(self, path: str, facts: FileFacts) -> None:
        """Take in what a file defines."""
        members: dict[tuple[str, str], int] = {}
        nested: dict[tuple[int, str], int] = {}
        for number, function in enumerate(facts.functions):
            if function.class_name:
                members[function.class_name, function.name] = number
                self.methods[function.name].append((path, number))
            elif function.outer == 0:
                members["", function.name] = number
            elif function.outer > 0:
                nested[function.outer, function.name] = number
        self.members[path] = members
        self.nested[path] = nested
        self.classes[path] = {c.name: c for c in facts.classes}
        for name, ref, number in facts.states:
            self._states[name].append((path, number, ref))

    def function(self, key: Key) -> FunctionFacts:
        return self.files[key[0]].functions[key[1]]

    def inside(self, key: Key) -> list[Key]:
        """Return the functions and lambdas inside a function."""
        return [(key[0], number) for number, function in enumerate(self.files[key[0]].functions) if function.outer == key[1]]

    def is_harmless(self, path: str, ref: str) -> bool:
        """Return whether a name is imported from a file of the project that leads to no inference."""
        return self.leads_nowhere(self.files[path].imports.get(_SEGMENT.findall(ref)[0], "") if ref else "", path)

    def leads_nowhere(self, full: str, path: str) -> bool:
        """Return whether a full name, as a file imports it, is one of a file of the project that leads to no inference."""
        if not full or not self.source.harmless:
            return False
        found = self._anywhere(full, path) or self._anywhere(full.rpartition(".")[0] or ".", path)
        return found in self.source.harmless

    @cached_property
    def roots(self) -> Roots:
        """Return the modules with those that lead to no inference."""
        every = Modules()
        for path in sorted({*self.parts, *self.source.harmless}):
            every.add(path)
        return Roots(every, self.source.text, self.source.naming, self._imports_of)

    def _imports_of(self, path: str) -> Iterable[str]:
        return self.files[path].imports.values() if path in self.files else ()

    def _anywhere(self, name: str, importer: str) -> str:
        """Return the file of a module, also if it leads to no inference."""
        return self.roots.find(self.roots.every, name, importer)

    def fails(self, module: str, importer: str, name: str = "") -> bool:
        """Return whether importing a module always raises, though another application in the repository has it.

        With a name, whether importing that from the module raises.
        """
        if not name:
            return self.roots.fails(module, importer)
        file = self.file_of(importer, module, name) if name != "*" and self.is_own(module) else ""
        return bool(file) and self.lacks(file, name)

    def methods_named(self, name: str) -> list[Key]:
        """Return the methods with a name, without those that have no body of their own."""
        self.source.read_definers(name)
        every = self.methods.get(name, ())
        size, found = self._concrete_methods.get(name, (-1, []))
        if size != len(every):  # others were read meanwhile
            found = sorted(key for key in every if not self.function(key).abstract)
            self._concrete_methods[name] = (len(every), found)
        return found

    # Modules

    def module(self, name: str, importer: str) -> str:
        """Return the file of a module that `importer` imports, or "" if the project has none."""
        while path := self.roots.find(self.modules, name, importer):
            if self.source.has(path):
                return path
            self.modules.remove(self.parts[path], path)  # it cannot be parsed
        return ""

    def is_own(self, module: str) -> bool:
        """Return whether a module can only be one of the project: by its place, or as the only one of a name with two parts."""
        if module.startswith("."):
            return True
        wanted = tuple(module.split("."))
        return len(wanted) > 1 and len(self.roots.every.fitting(wanted)) == 1

    def file_of(self, importer: str, module: str, name: str) -> str:
        """Return the file of the module that has `name`; "" if that is a module itself, or not the project's."""
        return "" if self.inner_module(importer, module, name) else self._anywhere(module, importer)

    def inner_module(self, importer: str, module: str, name: str) -> str:
        """Return the file of the module `name` in a package; "" if it is none."""
        return self._anywhere(f"{module}{'' if module.endswith('.') else '.'}{name}", importer)

    def package_of(self, path: str) -> str:
        """Return the file that is run before that of a module in its folder; "" if there is none."""
        found = str(PurePath(path).with_name("__init__.py"))
        return found if found in self.parts or found in self.source.harmless else ""

    def lacks(self, path: str, name: str) -> bool:
        """Return whether a module, other than a package, has nothing called `name`, and makes no names when it runs."""
        return not path.endswith("__init__.py") and self.roots.lacks(path, name)

    def imported(self, full: str, importer: str, depth: int) -> Value | None:
        """Return what `from a.b import C` gives: the longest part that is a module, then its members."""
        dots = full[: len(full) - len(full.lstrip("."))]
        names = full.lstrip(".").split(".")
        for size in range(len(names), 0, -1):
            module = dots + ".".join(names[:size])
            path = self.module(module, importer)
            if not path and self.fails(module, importer):
                return Value("missing", importer, name=full)
            if path:
                value: Value | None = None
                if size == len(names):  # `from package.rag import ask` finds the module `rag`, whatever the package has
                    value = self._in_package(path, names[size - 1], depth)
                value = value or Value("module", path)
                for name in names[size:]:
                    value = self.attribute(value, name, depth - 1) if value is not None else None
                if value is None and self.leads_nowhere(full, importer):
                    return Value("made", importer, name=full)  # by a file that is not read, since there is no inference in it
                if value is None and self.roots.lacks(path, names[size]):
                    return Value("missing", importer, name=full)
                return value
        if dots and len(names) == 1 and (path := self.module(dots, importer)):
            return self.attribute(Value("module", path), names[0], depth - 1)
        if dots and self.leads_nowhere(full, importer):
            return Value("made", importer, name=full)
        return None if dots or names[0] in _OF_NO_TYPE else Value("made", importer, name=full)

    def _in_package(self, path: str, module: str, depth: int) -> Value | None:
        """Return what a package has in place of its module: `from .rag import rag` in it hides the module `rag`."""
        package = self.package_of(path)
        if not package or package == path or depth <= 0 or not hides_module(self.source.text(package), module):
            return None
        return self.attribute(Value("module", path), module, depth - 1)

    # References

    def find(self, path: str, number: int, ref: str, depth: int = DEPTH) -> Value | None:
        """Return what a reference stands for in a function."""
        key = (path, number, ref)
        if key in self._cache:
            return self._cache[key]
        self._cache[key] = None  # a reference that leads to itself leads nowhere
        found = self._follow(path, number, ref, depth) if depth > 0 else None
        self._cache[key] = found
        return found

    def _follow(self, path: str, number: int, ref: str, depth: int) -> Value | None:
        segments = _SEGMENT.findall(ref)
        if not segments:
            return None
        if segments[1:] in (["[]"], [".get", "()"]):  # one of the values of a dictionary: PROVIDERS[name]
            found = self._name(path, number, segments[0] + "[]", depth)
            return replace(found, chosen=True) if found is not None and found.kind == "function" else None
        value = self._name(path, number, segments[0], depth)
        for segment in segments[1:]:
            if value is None:
                return None
            if segment == "()":
                value = self.called(value, depth - 1)
            elif segment == "[]":
                return None
            else:
                value = self.attribute(value, segment[1:], depth - 1)
        return value

    def _name(self, path: str, number: int, name: str, depth: int) -> Value | None:
        facts = self.files[path]
        here = number
        if name in {"self", "cls"}:
            while here > 0 and not facts.functions[here].class_name:
                here = facts.functions[here].outer
            owner = facts.functions[here].class_name if here > 0 else ""
            return Value("instance", path, name=owner) if owner else None
        while here > 0:
            function = facts.functions[here]
            inner = self.nested[path].get((here, name))
            if inner is not None:
                return Value("function", path, inner)
            for ref in function.assigned.get(name, ()):
                if ref.partition(".")[0] != name and (found := self.find(path, here, ref, depth - 1)) is not None:
                    return found
            if name in function.parameters:
                provided = self.find(path, here, function.provided.get(name, ""), depth - 1)
                if provided is not None and (
                    provided.kind == "instance"
                    or (provided.kind == "made" and self.leads_nowhere(provided.name, provided.path))
                ):
                    return provided
                given = function.parameters[name]
                found = self.find(path, here, given, depth - 1) if given and given != name else None
                return self.instance(found)
            here = function.outer
        return self._global(path, name, depth)

    def _global(self, path: str, name: str, depth: int) -> Value | None:
        facts = self.files[path]
        number = self.members[path].get(("", name))
        if number is not None:
            return Value("function", path, number)
        if name in self.classes[path]:
            return Value("class", path, name=name)
        if facts.functions:
            for ref in facts.functions[0].assigned.get(name, ()):
                if ref.partition(".")[0] != name and (found := self.find(path, 0, ref, depth - 1)) is not None:
                    return found
        full = facts.imports.get(name)
        if full is not None:
            return self.imported(full, path, depth - 1) if depth > 0 else None
        for star, module in facts.imports.items():
            if star[0] == "*" and depth > 0 and (other := self.module(module, path)) and other != path:
                found = self._global(other, name, depth - 1)
                if found is not None:
                    return found
        return None

    @staticmethod
    def instance(value: Value | None) -> Value | None:
        return Value("instance", value.path, name=value.name) if value is not None and value.kind == "class" else value

    def called(self, value: Value, depth: int) -> Value | None:
        """Return what calling `value` returns."""
        if value.kind == "class":
            return self.instance(value)
        if value.kind == "instance" and (value.name, "__call__") not in self.members[value.path]:
            return value  # a parameter that is a class, type[Workflow]: what it makes
        if value.kind == "function" and depth > 0:
            for ref in self.function((value.path, value.number)).returned:
                found = self.find(value.path, value.number, ref, depth - 1)
                if found is not None:
                    return self.instance(found)
            return None
        return value if value.kind in {"made", "missing"} else None

    def attribute(self, value: Value, name: str, depth: int) -> Value | None:
        if value.kind == "module":
            found = self._global(value.path, name, depth)
            if found is not None:
                return found
            inner = self.module(".".join((*self.parts[value.path][-1:], name)), value.path)
            return Value("module", inner) if inner else None
        if value.kind == "made":
            if value.name.endswith(".state"):
                return self._state(name, depth)
            if value.name in _CARRIERS:
                return None
            return Value("made", value.path, name=f"{value.name}.{name}")
        if value.kind in {"instance", "class"}:
            return self._member(value.path, value.name, name, depth)
        return value if value.kind == "missing" else None

    def _state(self, name: str, depth: int) -> Value | None:
        """Return what app.state.x, or request.app.state.x, was set to anywhere in the project."""
        self.source.read_users(name, method=True)
        for path, number, ref in self._states.get(name, ()):
            if depth > 0 and (found := self.find(path, number, ref, depth - 1)) is not None:
                return found
        return None

    def _member(self, path: str, owner: str, name: str, depth: int) -> Value | None:
        """Return a method or an attribute of a class, also of its bases."""
        number = self.members[path].get((owner, name))
        if number is not None:
            return Value("function", path, number)
        found = self.classes[path].get(owner)
        if found is None or depth <= 0:
            return None
        start = self.members[path].get((owner, "__init__"), 0)
        for ref in found.attributes.get(name, ()):
            if (value := self.find(path, start, ref, depth - 1)) is not None:
                return self.instance(value)
        for parent in self._parents(path, owner, depth):
            if (value := self._member(parent.path, parent.name, name, depth - 1)) is not None:
                return value
        return None

    # Calls

    def callees(self, path: str, number: int, ref: str) -> list[Key]:
        """Return the functions of the project that a call may run; several only if the receiver's type is not known."""
        value = self.find(path, number, ref)
        if value is not None:
            if value.kind == "function":
                key = (value.path, value.number)
                return self._concrete(key) if self.function(key).abstract else [key]
            if value.kind in {"class", "instance"}:
                name = "__call__" if value.kind == "instance" else "__init__"
                inner = self.members[value.path].get((value.name, name))
                return [(value.path, inner)] if inner is not None else []
            return []
        receiver, _, verb = ref.rpartition(".")
        if receiver == "super()":
            return self._above(path, number, verb)
        return self._by_name(path, number, receiver, verb) if receiver and not receiver.endswith("super()") else []

    def _above(self, path: str, number: int, name: str) -> list[Key]:
        """Return the method that `super().name()` runs."""
        own = self._name(path, number, "self", DEPTH)
        if own is None:
            return []
        found = [self._member(v.path, v.name, name, DEPTH) for v in self._parents(own.path, own.name)]
        return [(v.path, v.number) for v in found if v is not None and v.kind == "function"][:1]

    def _parents(self, path: str, name: str, depth: int = DEPTH) -> list[Value]:
        """Return the classes of the project that a class names as its bases."""
        owner = self.classes[path].get(name)
        found = [self.find(path, 0, base.removesuffix("[]"), depth - 1) for base in owner.bases] if owner is not None else []
        return [v for v in found if v is not None and v.kind == "class" and (v.path, v.name) != (path, name)]

    def is_certain(self, path: str, number: int, ref: str) -> bool:
        """Return whether a call can run nothing but the one function that `callees` returns."""
        value = self.find(path, number, ref)
        if ref[:1] == "#":
            return True
        if value is None or value.kind != "function" or value.chosen or len(self.callees(path, number, ref)) != 1:
            return False
        key = (path, number, ref.rpartition(".")[0])
        if key not in self._choices:
            self._choices[key] = self._has_choice(*key)
        return not self._choices[key]

    def _has_choice(self, path: str, number: int, ref: str, depth: int = DEPTH) -> bool:
        """Return whether a factory on the way to a receiver returns one of several classes: get_provider().generate."""
        segments = _SEGMENT.findall(ref)
        if not segments or depth <= 0:
            return False
        value = self._name(path, number, segments[0], depth)
        for ref_of in self._assigned(path, number, segments[0]):
            if self._has_choice(path, number, ref_of, depth - 1):
                return True
        for segment in segments[1:]:
            if value is None:
                return False
            if segment == "()" and value.kind == "function":
                returned = self.function((value.path, value.number)).returned
                made = [self.instance(self.find(value.path, value.number, r)) for r in returned]
                classes = {(v.path, v.name) for v in made if v is not None and v.kind == "instance"}
                bases = {base for p, name in classes for base in self._class_bases(p, name)}
                if len([c for c in classes if c[1] not in bases]) > 1:
                    return True
            elif segment[0] == "." and value.kind == "instance":
                start = self.members[value.path].get((value.name, "__init__"), 0)
                owner = self.classes[value.path].get(value.name)
                given = owner.attributes.get(segment[1:], ()) if owner is not None else ()
                if any(self._has_choice(value.path, start, r, depth - 1) for r in given):
                    return True
            value = self.called(value, depth - 1) if segment == "()" else self.attribute(value, segment[1:], depth - 1)
        return False

    def lacks_method(self, path: str, number: int, ref: str) -> bool:
        """Return whether a call raises: its receiver is made by a class of the project that has no method with that name."""
        receiver, _, verb = ref.rpartition(".")
        owner = self._name(path, number, "self", DEPTH) if receiver.startswith("self.") else None
        if owner is not None:
            held = self.classes[owner.path].get(owner.name)
            made = held.attributes.get(receiver[5:], []) if held is not None else []
        else:
            made = self._assigned(path, number, receiver)
        if len(made) != 1 or not made[0].removesuffix("()").isidentifier():
            return False
        value = self.find(path, number, receiver)
        if value is None or made[0] != f"{value.name.rpartition('.')[2]}()":
            return False
        file = value.path if value.kind == "instance" else self._anywhere(value.name.rpartition(".")[0], value.path)
        return bool(file) and lacks_method(self.source.text(file), value.name.rpartition(".")[2], verb)

    def _assigned(self, path: str, number: int, name: str) -> list[str]:
        """Return the references of what is assigned to a name, in the functions around or in the module."""
        functions = self.files[path].functions
        here = number
        while here >= 0:
            found = [r for r in functions[here].assigned.get(name, ()) if r.partition(".")[0] != name]
            if found:
                return found
            here = functions[here].outer
        return []

    def _mro(self, value: Value, depth: int = DEPTH) -> set[str] | None:
        """Return the names of a class of the project and of its bases; None if one of them is not known."""
        owner = self.classes[value.path].get(value.name)
        if owner is None or depth <= 0 or (value.name, "__getattr__") in self.members[value.path]:
            return None
        found = {value.name}
        for base in owner.bases:
            if base in {"ABC", "abc.ABC", "object", "Protocol", "Generic[]"}:
                continue
            parent = self.find(value.path, 0, base.removesuffix("[]"))
            above = self._mro(parent, depth - 1) if parent is not None and parent.kind == "class" else None
            if above is None:
                return None
            found |= above
        return found

    def _concrete(self, key: Key) -> list[Key]:
        """Return what completes an abstract method: in classes that name its class as a base, else anywhere near."""
        abstract = self.function(key)
        found = self.methods_named(abstract.name)
        derived = [k for k in found if abstract.class_name in self.bases(k)]
        return (self._near(key[0], derived) or derived or self._near(key[0], found))[:MANY]

    def bases(self, key: Key) -> list[str]:
        """Return the last parts of the names of a method's class's bases."""
        return self._class_bases(key[0], self.function(key).class_name)

    def _class_bases(self, path: str, name: str) -> list[str]:
        owner = self.classes[path].get(name)
        return [base.removesuffix("[]").rpartition(".")[2] for base in owner.bases] if owner is not None else []

    def _near(self, path: str, keys: list[Key]) -> list[Key]:
        """Leave out functions of other applications in the same tree, if there are any in this one."""
        here = self.parts[path]
        if here[0] in _FOLDERS_OF_SERVICES:
            return [k for k in keys if shared(here, self.parts[k[0]]) > 1 or self.parts[k[0]][0] != here[0]]
        return [k for k in keys if self.parts[k[0]][:1] == here[:1]] or keys

    def rivals(self, path: str, number: int, ref: str, found: list[Key]) -> int:
        """Return how many files without inference define what a call may run as well as these, if only names tell."""
        if self.find(path, number, ref) is not None:
            return 0
        receiver, _, verb = ref.rpartition(".")
        words = words_in(receiver)
        if not any(words & words_in(self.function(k).class_name) for k in found):
            return 0  # the method's name is telling
        if (verb, words) not in self._rivals:
            self._rivals[verb, words] = self.source.harmless_definers(verb, words)
        return self._rivals[verb, words]

    def _by_name(self, path: str, number: int, receiver: str, verb: str) -> list[Key]:
        known = self.find(path, number, receiver)
        if known is not None and known.kind in {"made", "module", "function"}:
            return []
        candidates = self._near(path, self.methods_named(verb))
        if known is not None and receiver != "self" and (mro := self._mro(known)) is not None:
            return [k for k in candidates if not mro.isdisjoint(self.bases(k))]  # only a class below it can have the method
        words = words_in(receiver)
        similar = [k for k in candidates if words & words_in(self.function(k).class_name)]
        if similar:
            return similar[:MANY]
        return [] if verb in ANYONES or len(candidates) > MANY else candidates


_OF_NO_TYPE = frozenset({"typing", "typing_extensions", "collections"})  # Dict, Any: what they hold may be anything
_CARRIERS = frozenset({"flask.g", "flask.current_app", "quart.g", "quart.current_app"})  # they hold what the project puts there
_FOLDERS_OF_SERVICES = frozenset({"services", "microservices"})  # each of them an application
