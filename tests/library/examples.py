"""The examples as their users run them: under uvicorn, as processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes import get_json
from support.waiting import wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Address = tuple[str, int]


@contextmanager
def served(example: str, engine_url: str) -> Iterator[Address]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor = listener.fileno()
        command = [sys.executable, "-m", "uvicorn", f"{example}:app", "--app-dir", str(EXAMPLES), "--fd", str(descriptor)]
        command += ["--timeout-graceful-shutdown", "1"]
        env = os.environ | {"ENGINE": engine_url}
        process = subprocess.Popen(
            command, pass_fds=[descriptor], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        address = listener.getsockname()
    try:
        wait_until(lambda: _answers(address), what=f"{example} to serve")
        yield address
    finally:
        process.terminate()
        process.wait(10)


def _answers(address: Address) -> bool:
    try:
        return bool(get_json(f"http://{address[0]}:{address[1]}/openapi.json"))
    except OSError:
        return False
