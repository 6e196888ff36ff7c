"""`import hangup` is light: no server, no framework, and hardly any time."""

from __future__ import annotations

import subprocess
import sys

import pytest


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout


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


@pytest.mark.alone
@pytest.mark.parametrize("names", ["run, stream", "Gate"])
def test_import_takes_at_most_50_ms(names: str) -> None:
    """Of the processor's time, best of five, since the machine may be busy; an async application has asyncio already."""
    code = f"import asyncio, time; t = time.process_time(); from hangup import {names}; print(time.process_time() - t)"
    assert min(float(python(code)) for _ in range(5)) < 0.050


def test_import_alone_loads_nothing_of_the_library() -> None:
    assert "asyncio" not in python("import sys, hangup; print(*sys.modules)").split()


def test_unknown_names_are_errors() -> None:
    assert "has no attribute 'strem'" in python("import hangup\ntry: hangup.strem\nexcept AttributeError as e: print(e)")
