"""docs/library.md as printed: its first application serves, its tests of that application pass, and all its code compiles."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from hangup.testing import CountingEngine, call, serve

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "library.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
ENGINE = "http://127.0.0.1:8000"


def block_with(text: str) -> str:
    (found,) = [block for block in BLOCKS if text in block]
    return str(found)


def make_app(engine_url: str) -> Any:
    """Run the first code of the page, with another engine."""
    names: dict[str, Any] = {"__name__": "main"}
    code = block_with("app = FastAPI()")
    assert ENGINE in code
    exec(code.replace(ENGINE, engine_url), names)
    return names["app"]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the SDK's client is left to the collector
def test_the_first_application_serves() -> None:
    with CountingEngine(tokens=3) as engine, serve(make_app(engine.url)) as url, call(f"{url}/chat?prompt=hi") as client:
        assert client.wait_for_data("[DONE]").count(b"word ") == 3


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_its_tests_pass() -> None:
    names: dict[str, Any] = {"make_app": make_app}
    exec(block_with("from hangup.testing").replace("/chat", "/chat?prompt=hi"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


@pytest.mark.parametrize("code", BLOCKS, ids=[str(n) for n in range(len(BLOCKS))])
def test_code_is_python(code: str) -> None:
    """Some of it is the inside of a handler, or shows alternatives."""
    lines = code.replace("async with gate.enter(request): ", "async with gate.enter(request): pass ")
    lines = re.sub(r"(@app.post\(.*\n)", r"\1async def chat(): pass\n", lines) if "gate" in lines else lines
    ast.parse("async def handler():\n" + "".join(f"    {line}\n" for line in lines.splitlines()))
