"""What a compiled gateway needs of the sources; `make test-compiled` and COMPILED_TESTS run the other tests on it."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pickle
import weakref
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from hangup.config.load import Configuration
from hangup.core.admission import Ticket
from hangup.core.jobs import ItemCounts, JobStatus
from hangup.gateway.apis.hosted_jobs import ProviderAnswer
from hangup.gateway.jobs.provider import ProviderRecord

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/hangup"


def compiled_patterns() -> tuple[str, ...]:
    """Return the patterns of `COMPILED`, without importing hatchling."""
    for node in ast.parse((ROOT / "hatch_build.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "COMPILED":
            return tuple(ast.literal_eval(node.value))
    raise AssertionError("hatch_build.py has no COMPILED")


def is_compiled(path: Path) -> bool:
    name = path.relative_to(PACKAGE).as_posix()
    # `*` stands for a name in one folder, as for `glob`
    return path.name != "__init__.py" and any(
        fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in compiled_patterns()
    )


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield path, node


def base_names(node: ast.ClassDef) -> set[str]:
    plain = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return {ast.unparse(base) for base in plain}


def test_every_pattern_names_a_module() -> None:
    assert [pattern for pattern in compiled_patterns() if not list(PACKAGE.glob(pattern))] == []


def test_no_class_in_python_derives_from_a_compiled_one() -> None:
    """It could not be made. Protocols, exceptions, enums and classes with a metaclass stay ordinary classes when compiled."""
    found = list(classes())
    ordinary = {"Protocol", "Exception", "Enum", "NamedTuple", "Declared"}
    by_name = {node.name: node for _, node in found}

    def is_ordinary(node: ast.ClassDef) -> bool:
        names = base_names(node) | {keyword.value.id for keyword in node.keywords if isinstance(keyword.value, ast.Name)}
        return bool(names & ordinary) or any(is_ordinary(by_name[name]) for name in names if name in by_name)

    native = {node.name for path, node in found if is_compiled(path) and not is_ordinary(node)}
    wrong = [
        f"{path.relative_to(ROOT)}: {node.name}" for path, node in found if not is_compiled(path) and base_names(node) & native
    ]
    assert "CallFlow" in native and "Api" not in native
    assert wrong == []


def dataclasses_within(hint: Any, known: set[type]) -> set[type]:
    """Return the data classes that a value of a type may hold, at any depth."""
    for part in get_args(hint):
        dataclasses_within(part, known)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint not in known:
        known.add(hint)
        for field in get_type_hints(hint).values():
            dataclasses_within(field, known)
    return known


def test_what_workers_send_each_other_can_be_unpickled_when_it_is_compiled() -> None:
    """The default of pickle sets field by field, which a frozen object refuses; `slots` makes up for it only in Python."""
    sent: set[type] = set()
    for root in (Configuration, ProviderRecord, ProviderAnswer):
        dataclasses_within(root, sent)
    assert {Configuration, ProviderRecord, ProviderAnswer} < sent
    wrong = [
        each.__name__
        for each in sent
        if is_compiled(PACKAGE.parent / (each.__module__.replace(".", "/") + ".py"))
        and each.__dataclass_params__.frozen  # type: ignore[attr-defined]
        and "__reduce__" not in vars(each)
    ]
    assert wrong == []


def test_an_answer_of_a_provider_is_the_same_after_it_was_sent() -> None:
    answer = ProviderAnswer("resp_1", JobStatus.RUNNING, ItemCounts(queued=3), "m", 12.5, detached=False)
    assert pickle.loads(pickle.dumps(answer)) == answer


def test_nothing_refers_weakly_to_a_compiled_object() -> None:
    """mypyc's code for Python 3.11 would drop a reference too many, and the interpreter would crash later."""
    if not hasattr(Ticket, "__mypyc_attrs__"):
        pytest.skip("hangup is not compiled here")
    with pytest.raises(TypeError, match="weak reference"):
        weakref.ref(Ticket("a call"))
    found = [
        value
        for path in sorted(PACKAGE.rglob("*.py"))
        if is_compiled(path)
        for value in vars(importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))).values()
        if isinstance(value, type) and hasattr(value, "__mypyc_attrs__") and not getattr(value, "_is_protocol", False)
    ]
    assert Ticket in found
    assert [each.__qualname__ for each in found if each.__weakrefoffset__] == []
