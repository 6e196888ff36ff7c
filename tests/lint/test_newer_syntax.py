"""What Python 3.12 added to the syntax does not keep an older Python from judging a file."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.lint.check import RUNNING, lint_source
from hangup.lint.newer_syntax import NEWER, as_older

NESTED = 'x = f"{a["b"]}"'


@pytest.mark.parametrize(
    "source",
    [
        NESTED,
        'x = f"{a["b"]}" + f"{c}"\ny = 1\n',
        "x = f\"{'\\n'.join(lines)}\"\n",
        'x = f"""{\n  f"{a["b"]!r:>{w["x"]}}"  # c }\n}"""\nz = 2\n',
        'x = f"{d["a"]:#x}"; y = "}"\n',
        'y = "a" if x else f"{k["v"]}"',
        'y = x if x else"b" + f"{k["v"]}"  # f"{',
        'x = f"{ {1: 2}["k"] }"',
        'x = f"\\N{DASH} {a["b"]}"',
        'x = f"{{{a["b"]}}}"',
        'x = f"{x=} {a["b"] != 3} {(y := a["c"])}"',
        "x = rf'\\{a['b']}'",
        "x = f'{(lambda: a['b'])()}'",
        'x = f"{f"{f"{a["b"]}"}"}"',
        "class Store[T]:\n    def get[K: (int, list[str]), *V](self, key: K) -> T: ...\n",
        "async def ask[T: Model](kind: type[T]) -> T: ...\n",
    ],
)
def test_what_an_older_python_cannot_parse_becomes_plain(source: str) -> None:
    if RUNNING >= NEWER:
        ast.parse(source)  # it is what that Python allows
        return
    older = as_older(source)
    assert older is not None
    ast.parse(older)
    assert [len(line) for line in older.split("\n")] == [len(line) for line in source.split("\n")]


@pytest.mark.parametrize("source", ["x = 1", 'x = f"{a}"', 'x = f"{a["b"]', 'x = "{" + f"{', "x = 'a\ny = f'{b['c']}"])
def test_what_needs_it_not_or_is_broken_stays(source: str) -> None:
    assert as_older(source) is None


@given(st.text("fr\"'{}[]():!#\\\nab ", max_size=40))
def test_it_comes_to_an_end_with_any_text(source: str) -> None:
    older = as_older(source)
    assert older is None or older.count("\n") == source.count("\n")


def test_a_leak_beside_such_a_string_is_found() -> None:
    source = """
from fastapi import FastAPI
from openai import AsyncOpenAI

app = FastAPI()
client = AsyncOpenAI()

@app.post("/chat")
async def chat(body: dict):
    prompt = f"{body["prompt"]}"  # hangup: ignore[HU001]
    return await client.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}])
"""
    assert [(f.code, f.line) for f in lint_source(source)] == [("HU004", 11)]
