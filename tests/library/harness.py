"""Runs the served application as a process, in asyncio's debug mode, and queries it for the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.processes import get_json
from support.raw import Client
from support.waiting import PATIENCE_S, wait_until

SHARED_S = 0.01
HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent.parent / "src"  # for a Python of another environment
# What Python says, in debug mode, when something was left behind. Slow callbacks are the machine's business.
COMPLAINTS = ("was never", "Task was destroyed", "never retrieved", "Traceback", "unclosed transport", "Exception in")


class Served:
    def __init__(
        self, *arguments: str, script: Path = HERE / "served.py", python: str = sys.executable, start_s: float = PATIENCE_S
    ) -> None:
        server = self.server = arguments[-1]
        env = os.environ | {
            "PYTHONASYNCIODEBUG": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (script.parent, HERE.parent, SOURCES))),
            "SERVED_BY_NAME": "1" if arguments == ("granian",) else "",
        }
        command = [python, "-X", "dev", str(script), *arguments]
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.lines: list[str] = []
        self._asking = threading.Lock()
        self._requested_at = 0.0
        self._state: dict[str, Any] = {}
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()
        try:
            line = wait_until(self._serving, start_s, f"{server} to start")
            assert line is not None
            self.address = ("127.0.0.1", int(line.split()[1]))
            wait_until(self._answers, what=f"{server} to answer")
        except AssertionError:
            self.close()
            raise AssertionError("\n".join(self.lines)) from None

    def _collect(self) -> None:
        assert self.popen.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self.popen.stdout)

    def _serving(self) -> str:
        return next((line for line in self.lines if line.startswith("serving ")), "")

    def _answers(self) -> bool:
        try:
            self.state()
        except OSError:
            return False
        return True

    def state(self) -> dict[str, Any]:
        """Return the state, shared by clients that ask at the same time, so that queries do not delay the server."""
        with self._asking:
            if time.monotonic() > self._requested_at + SHARED_S:
                self._state = dict(get_json(f"http://127.0.0.1:{self.address[1]}/state"))
                self._requested_at = time.monotonic()
            return self._state

    def work(self, id: str) -> dict[str, Any]:
        return dict(self.state()["works"].get(id) or {"computed": 0, "running": False, "ended": [], "aborted": 0})

    def post(self, path: str, id: str, receive_buffer: int = 0, **query: Any) -> Client:
        client = Client(self.address, receive_buffer=receive_buffer)
        text = "&".join(f"{name}={value}" for name, value in {"id": id, **query}.items())
        client.post(f"/{path}?{text}", {})
        return client

    def wait_computed(self, id: str, at_least: int) -> int:
        wait_until(lambda: self.work(id)["computed"] >= at_least, what=f"{at_least} tokens of {id}")
        return int(self.work(id)["computed"])

    def wait_running(self, id: str) -> None:
        wait_until(lambda: self.work(id)["running"], what=f"{id} to begin")

    def wait_ended(self, id: str, timeout_s: float = 10) -> dict[str, Any]:
        """Return the engine's counts once nothing of the call runs and its end was reported."""

        def look() -> dict[str, Any] | None:
            work = self.work(id)
            return work if not work["running"] and work["ended"] else None

        found = wait_until(look, timeout_s, f"the end of {id}")
        assert found is not None
        return found

    def wait_nothing_left(self) -> None:
        wait_until(lambda: not (s := self.state())["tasks"] and not s["threads"], what="no task and no thread of ours")

    def complaints(self) -> list[str]:
        return self.lines[:] if any(word in line for line in self.lines for word in COMPLAINTS) else []

    def close(self) -> None:
        self.popen.terminate()
        try:
            self.popen.wait(30)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(5)
        self._reader.join(60)
        if self.popen.stdout is not None:
            self.popen.stdout.close()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
