"""`import hangup` is light: no server, no framework, and hardly any time."""

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


@pytest.mark.parametrize("names", ["run, stream", "Gate"])
def test_import_takes_at_most_50_ms(names: str) -> None:
    """Of the processor's time; where the machine is slow or shared, no more than goes with what asyncio takes there (30 ms
    on one that is not). An async application has asyncio already."""
    clock = "time.process_time()"
    code = f"import time; a = {clock}; import asyncio; b = {clock}; from hangup import {names}; print(b - a, {clock} - b)"
    runs = [tuple(map(float, python(code).split())) for _ in range(5)]
    assert any(ours < max(0.050, asyncios * 50 / 30) for asyncios, ours in runs), runs


def test_import_alone_loads_nothing_of_the_library() -> None:
    assert "asyncio" not in python("import sys, hangup; print(*sys.modules)").split()


def test_unknown_names_are_errors() -> None:
    assert "has no attribute 'strem'" in python("import hangup\ntry: hangup.strem\nexcept AttributeError as e: print(e)")
