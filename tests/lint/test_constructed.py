"""Branches on an attribute that all constructions of its class set to the same constant."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangup.lint.run import lint_paths

SERVICE = """
from openai import AsyncOpenAI

client = AsyncOpenAI()

class Service{bases}:
    def __init__(self, rows, use_model={default}, kind="rules"):
        self.rows = rows
        self.use_model = use_model
        self.kind = kind

    async def answer(self, text):
        if {test}:
            return await client.chat.completions.create(model="m", messages=[text], max_tokens=500)
        return self.rows
"""
APP = """
from fastapi import FastAPI
from service import Service

app = FastAPI()
service = {made}

@app.post("/ask")
async def ask(text: str, known: Service | None = None):
    return await service.answer(text)
"""


def found(
    root: Path, made: str, *, more: str = "", test: str = "self.use_model", default: str = "False", bases: str = ""
) -> list[str]:
    (root / "service.py").write_text(SERVICE.format(test=test, default=default, bases=bases))
    (root / "app.py").write_text(APP.format(made=made) + more)
    return [finding.code for finding in lint_paths([root]).findings]


@pytest.mark.parametrize("made", ["Service([])", "Service([], False)", "Service([], use_model=False)", "Service(rows=[])"])
def test_a_branch_that_every_construction_rules_out(tmp_path: Path, made: str) -> None:
    assert found(tmp_path, made) == []


@pytest.mark.parametrize("test", ["self.use_model and text", "self.kind == 'model'", "not self.kind == 'rules'"])
def test_conditions_that_a_constant_rules_out(tmp_path: Path, test: str) -> None:
    assert found(tmp_path, "Service([])", test=test) == []


@pytest.mark.parametrize("test", ["self.use_model or text", "not self.use_model", "self.kind == 'rules'", "self.rows"])
def test_conditions_that_may_hold(tmp_path: Path, test: str) -> None:
    assert found(tmp_path, "Service([])", test=test) == ["HU004"]


@pytest.mark.parametrize("made", ["Service([], True)", "Service([], use_model=wanted)", "Service([], **options)"])
def test_a_construction_that_may_give_another_value(tmp_path: Path, made: str) -> None:
    assert found(tmp_path, made) == ["HU004"]


@pytest.mark.parametrize(
    "more",
    [
        "other = Service([], True)\n",
        "service.use_model = True\n",
        "service.use_model, rest = True, 1\n",
        "setattr(service, name, True)\n",
        "class Better(Service):\n    pass\n",
        "Alias = Service\n",
        "made = build(Service, use_model=True)\n",
        "made = build('service.Service')\n",
        "def given(known: Annotated[object, Depends(Service)]): pass\n",
        "from service import Service as Other\nother = Other([], True)\n",
    ],
)
def test_instances_that_may_be_made_or_changed_elsewhere(tmp_path: Path, more: str) -> None:
    assert found(tmp_path, "Service([])", more=more) == ["HU004"]


def test_a_class_that_a_framework_may_make(tmp_path: Path) -> None:
    assert found(tmp_path, "Service([])", bases="(Model)") == ["HU004"]
    assert found(tmp_path, "Service([])", bases="(object)") == []


def test_a_class_that_the_project_does_not_construct(tmp_path: Path) -> None:
    assert found(tmp_path, "load(Service)") == ["HU004"]


def test_a_default_that_is_computed(tmp_path: Path) -> None:
    assert found(tmp_path, "Service([])", default="wanted()") == ["HU004"]


def test_a_branch_beside_another_one_with_the_same_call(tmp_path: Path) -> None:
    call = 'await client.chat.completions.create(model="m", messages=[text], max_tokens=500)'
    branches = f"self.use_model and text:\n            return {call}\n        elif self.kind == 'no'"
    assert found(tmp_path, "Service([])", test=branches) == []
