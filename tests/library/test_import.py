"""`import hangup` is light: no server, no framework, and few modules."""

from __future__ import annotations

import subprocess
import sys

import pytest


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_library_brings_no_server_and_no_framework() -> None:
    loaded = python(
        "import sys, hangup; hangup.stream, hangup.run, hangup.Gate, hangup.CancelToken; print(*sys.modules)"
    ).split()
    heavy = {
        "starlette",
        "fastapi",
        "litestar",
        "aiohttp",
        "uvicorn",
        "uvloop",
        "httptools",
        "httpx",
        "orjson",
        "prometheus_client",
        "anyio",
    }
    assert not heavy & set(loaded)


@pytest.mark.parametrize(("names", "modules_max"), [("run, stream", 42), ("Gate", 60)])
def test_import_loads_few_modules(names: str, modules_max: int) -> None:
    """Counts modules beyond asyncio, which an async application has already. `make bench ARGS=start` measures the time."""
    code = f"import sys, asyncio; before = len(sys.modules); from hangup import {names}; print(len(sys.modules) - before)"
    assert int(python(code)) <= modules_max


def test_import_alone_loads_nothing_of_the_library() -> None:
    assert "asyncio" not in python("import sys, hangup; print(*sys.modules)").split()


def test_unknown_names_are_errors() -> None:
    assert "has no attribute 'strem'" in python("import hangup\ntry: hangup.strem\nexcept AttributeError as e: print(e)")
