"""Runs hangup, its embedded engine and its stand-in engine as processes, on free ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.linux import proc
from support.waiting import PATIENCE_S, wait_until

HANGUP = [sys.executable, "-m", "hangup"]
COMPILED = Path(__file__).resolve().parents[2] / ".compiled/site"  # `make compile`


class Process:
    """A process whose output is kept line by line; it is stopped when the `with` block ends."""

    program = HANGUP  # the interpreter of these tests; a test of an installed package names its own

    pass_fds: tuple[int, ...] = ()  # files that the process inherits

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.arguments = arguments
        self.stderr_lines: list[str] = []
        self.stdout_lines: list[str] = []
        self.popen = subprocess.Popen(
            [*self.program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=self.pass_fds,
            env={k: v for k, v in os.environ.items() if not k.startswith("HANGUP_")} | _compiled() | (env or {}),
        )
        self._threads = [
            threading.Thread(target=self._collect, args=(self.popen.stdout, self.stdout_lines), daemon=True),
            threading.Thread(target=self._collect, args=(self.popen.stderr, self.stderr_lines), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _collect(stream: Any, lines: list[str]) -> None:
        lines.extend(line.rstrip("\n") for line in stream)

    def find_line(self, pattern: str, timeout_s: float = PATIENCE_S) -> re.Match[str]:
        def look() -> re.Match[str] | None:
            for line in list(self.stderr_lines):
                if match := re.search(pattern, line):
                    return match
            assert self.popen.poll() is None, f"{self.arguments} ended: {self.stderr_lines}"
            return None

        try:
            found = wait_until(look, timeout_s, f"{pattern} in the output of hangup {' '.join(self.arguments)}")
        except AssertionError:
            self.close()
            raise
        assert found is not None
        return found

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        code = self.popen.wait(timeout_s)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return code

    def close(self) -> None:
        """Kill it and all that it started: a child that lives on keeps the pipes open, and reading them would never end."""
        if self.popen.poll() is None:
            family = [self.popen.pid, *descendants(self.popen.pid)]
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.wait()
        assert not any(thread.is_alive() for thread in self._threads), (
            f"{self.arguments} left a process that keeps its output open"
        )
        for stream in (self.popen.stdout, self.popen.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _compiled() -> dict[str, str]:
    """Return the environment that makes a process run the compiled package, if COMPILED_TESTS says so: for "all" tests, or for
    those of "half" of the files, which are always the same ones."""
    wanted = os.environ.get("COMPILED_TESTS", "")
    file = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    return {"PYTHONPATH": str(COMPILED)} if wanted == "all" or (wanted == "half" and zlib.crc32(file.encode()) % 2) else {}


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have started; nothing where there is no /proc."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    try:
        children = [int(child) for path in lists for child in path.read_text().split()]
    except OSError:  # it has just ended
        return []
    return [*children, *(below for child in children for below in descendants(child))]


class StandIn(Process):
    """The stand-in engine."""

    def __init__(self, port: int = 0, **behaviour: Any) -> None:
        flags: list[str] = []
        for name, value in behaviour.items():
            flag = "--" + name.replace("_", "-")
            flags += ([flag] if value else []) if isinstance(value, bool) else [flag, str(value)]
        super().__init__("standin", "--port", str(port), *flags)
        self.url = self.find_line(r"fake engine on (http://\S+)")[1]
        self.port = int(self.url.rpartition(":")[2])

    def stats(self) -> dict[str, int]:
        return dict(get_json(f"{self.url}/standin/stats"))

    def seen(self) -> list[dict[str, Any]]:
        """Return the requests that reached it, without the gateway's own (health, recognition)."""
        rows = get_json(f"{self.url}/standin/seen")["seen"]
        return [row for row in rows if row["headers"].get("user-agent") != "hangup"]

    def last_name(self) -> dict[str, str]:
        """Return the header that named the last request: asked directly with it, the engine gives the same answer."""
        return {"X-Request-Id": self.seen()[-1]["headers"]["x-request-id"]}

    def past(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in get_json(f"{self.url}/standin/past")["past"]}

    def behave(self, **values: Any) -> None:
        post_json(f"{self.url}/standin/behave", values)

    def forget_peaks(self) -> None:
        post_json(f"{self.url}/standin/forget_peaks", {})

    def wait_idle(self) -> dict[str, int]:
        """Wait until nothing runs or waits in the engine."""
        return wait_until(lambda: (s := self.stats())["running"] + s["waiting"] == 0 and s, what="an idle engine") or {}

    def wait_stopped(self, calls: int = 1) -> dict[str, int]:
        """Wait until nothing runs; exactly `calls` calls since its start must have been aborted."""
        stats = self.wait_idle()
        assert stats["aborted"] == calls, stats
        return stats


class EngineProcess(Process):
    """The embedded engine on its own."""

    def __init__(self, **options: Any) -> None:
        flags = [part for name, value in options.items() for part in ("--" + name.replace("_", "-"), str(value))]
        super().__init__("engine", "--port", "0", *flags)
        self.url = self.find_line(r"engine on (http://\S+):")[1]
        self.port = int(self.url.rpartition(":")[2])
        self.address = ("127.0.0.1", self.port)

    def counters(self) -> dict[str, float]:
        text = urllib.request.urlopen(f"{self.url}/metrics", timeout=PATIENCE_S).read().decode()
        rows = re.findall(r"^hangup_engine_(\w+?)(?:_total)? ([\d.e+-]+)$", text, re.M)
        return {name: float(value) for name, value in rows}

    def wait_for(self, **counters: float) -> dict[str, float]:
        def look() -> dict[str, float] | None:
            now = self.counters()
            return now if all(now[name] == value for name, value in counters.items()) else None

        found = wait_until(look, what=f"{counters} of the engine")
        assert found is not None
        return found


class Gateway(Process):
    """`hangup serve`, on free ports."""

    def __init__(self, *upstreams: str, config: str = "", env: dict[str, str] | None = None, **settings: Any) -> None:
        flags: list[str] = []
        self.config_path: Path | None = None
        if config:
            handle, name = tempfile.mkstemp(suffix=".toml")
            os.close(handle)
            self.config_path = Path(name)
            self.config_path.write_text(config)
            flags += ["--config", name]
        for url in upstreams:
            flags += ["--upstream", url]
        for key, value in settings.items():
            flags += ["--" + key.replace("_", "-"), str(value)]
        super().__init__("serve", "--port", "0", "--admin-port", "0", *flags, env=env)
        found = self.find_line(r"serving (https?)://([^:]+):(\d+) \(admin (http://\S+)\)")
        self.host, self.port, self.admin_url = found[2], int(found[3]), found[4]
        self.url = f"{found[1]}://{self.host}:{self.port}"
        if upstreams or "[[backend]]" in config:
            wait_until(lambda: self.ready() in (200, 503), what="the admin port")

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def ready(self) -> int:
        try:
            return int(urllib.request.urlopen(f"{self.admin_url}/readyz", timeout=PATIENCE_S).status)
        except urllib.error.HTTPError as error:
            return int(error.code)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.stdout_lines) if line.startswith("{")]

    def call_log(self, id: str) -> dict[str, Any]:
        """Return the log line of one call, once it is written."""

        def look() -> dict[str, Any] | None:
            return next((row for row in self.log() if row.get("event") == "call_ended" and row["id"] == id), None)

        row = wait_until(look, what=f"the log line of call {id}")
        assert row is not None
        return row

    def metrics(self) -> dict[str, float]:
        text = urllib.request.urlopen(f"{self.admin_url}/metrics", timeout=PATIENCE_S).read().decode()
        rows = (line.rpartition(" ") for line in text.split("\n") if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}

    def open_files(self) -> int:
        return len(list(proc(self.popen.pid, "fd").iterdir()))

    def close(self) -> None:
        super().close()
        if self.config_path is not None:
            self.config_path.unlink(missing_ok=True)


@contextlib.contextmanager
def gateway_and_engine(settings: dict[str, Any] | None = None, **behaviour: Any) -> Iterator[tuple[Gateway, StandIn]]:
    with StandIn(**behaviour) as engine, Gateway(engine.url, **(settings or {})) as gateway:
        yield gateway, engine


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port of 127.0.0.1 on which a server can start, stop and restart; nothing else gets it meanwhile."""
    with socket.socket() as holder:
        holder.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # the server sets this too, so it can share the port with us
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


def post_json(url: str, value: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(value).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


def elapsed(since: float) -> float:
    return time.monotonic() - since
