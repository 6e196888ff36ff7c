"""Two gateways on one store, each with a sound and a shaky engine, all on fixed ports so that they can restart."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chaos.clock import Clock
from support.processes import Process, StandIn, reserved_port

_LIMITS = """
[limits]
job_worker_silence_s = 5
job_failures_max = 1000
drain_s = 6
queue_s = 20
first_token_s = 20
gap_s = 20
total_s = 60
health_interval_s = 1
counters_interval_s = 2
ledger_flush_s = 0.2
"""


class Engine:
    """A stand-in engine that restarts on the same port."""

    def __init__(self, name: str, port: int, **behaviour: Any) -> None:
        self.name = name
        self._behaviour = behaviour
        self.process = StandIn(port, **behaviour)
        self.port = self.process.port

    def alive(self) -> bool:
        return self.process.popen.poll() is None

    def restart(self) -> None:
        if not self.alive():
            self.process.close()
            self.process = StandIn(self.port, **self._behaviour)

    def behave(self, **values: Any) -> None:
        with contextlib.suppress(OSError):
            self.process.behave(**values)

    def behave_again(self) -> None:
        self.process.behave(
            deaf=False,
            cut_after=0,
            stall_after=0,
            crash_after=0,
            fail_status=0,
            token_s=0.004,
            prefill_s=0.01,
            ignore_cap=False,
            lies="",
            lag_s=0.0,
        )


class GatewayProcess:
    """`hangup serve` with its own configuration; its log is kept across restarts."""

    def __init__(
        self, name: str, ports: tuple[int, int], folder: Path, store: Path, engines: list[Engine], clock: Clock, slots: str
    ) -> None:
        self.name, self.engines = name, engines
        self.port, self.admin_port = ports
        self.ledger = folder / f"ledger-{name}.sqlite"
        self._clock = clock
        self._config = folder / f"{name}.toml"
        backends = "".join(f'[[backend]]\nname = "{e.name}"\nurl = "http://127.0.0.1:{e.port}"\n{slots}' for e in engines)
        head = f'port = {self.port}\nadmin_port = {self.admin_port}\njobs = "{store}"\nledger = "{self.ledger}"\n'
        self._config.write_text(head + _LIMITS + backends)
        self.deaths: list[float] = []  # when it was killed or asked to stop
        self.returns: list[float] = []  # when it was up again
        self.stops: list[tuple[float, float]] = []  # when it was paused
        self.past: list[Process] = []
        self.process: Process
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = Process("serve", "--config", str(self._config), env=self._clock.env)
        self.process.find_line(r"serving http", timeout_s=40)

    def alive(self) -> bool:
        return self.process.popen.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.alive():
            self.process.signal(number)

    def restart(self) -> None:
        if not self.alive():
            self.process.close()
            self.past.append(self.process)
            self.start()
            self.returns.append(time.monotonic())

    def log(self) -> list[dict[str, Any]]:
        lines = [line for process in (*self.past, self.process) for line in list(process.stdout_lines)]
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def errors(self) -> list[str]:
        return [line for process in (*self.past, self.process) for line in list(process.stderr_lines)]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=60) as answer:
            return json.loads(answer.read())

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        rows = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.popen.pid}/fd").iterdir()))

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.process.popen.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def may_write(self, most: int | None) -> None:
        """Limit the size of the files that the gateway writes; None removes the limit."""
        if self.alive():
            _, hard = resource.prlimit(self.process.popen.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.process.popen.pid, resource.RLIMIT_FSIZE, (hard if most is None else most, hard))


class World:
    def __init__(self, folder: Path, seed: int) -> None:
        chance = random.Random(f"{seed}-world")
        self.store = folder / "jobs.sqlite"
        self.clock = Clock(folder)
        behaviour = {"slots": 8, "queue": 500, "token_s": 0.004, "prefill_s": 0.01}
        # With vLLM's counters the gateway can count work that continues, and so can convict an engine, rightly or wrongly.
        likes = {name: chance.choice(["", "vllm"]) for name in "ab"}
        self._ports = contextlib.ExitStack()
        self.sound = [Engine(f"sound-{name}", self._port(), like=likes[name], **behaviour) for name in "ab"]
        self.shaky = [Engine(f"shaky-{name}", self._port(), like=likes[name], **behaviour) for name in "ab"]
        pairs = zip("ab", zip(self.sound, self.shaky, strict=True), strict=True)
        slots = {name: chance.choice(["slots = 8\n", ""]) for name in "ab"}  # configured, or learned
        self.gateways = [
            GatewayProcess(name, (self._port(), self._port()), folder, self.store, list(pair), self.clock, slots[name])
            for name, pair in pairs
        ]
        self.files = {gateway.name: gateway.files() for gateway in self.gateways}
        self.memory_mb = {gateway.name: gateway.memory_mb() for gateway in self.gateways}

    def _port(self) -> int:
        return self._ports.enter_context(reserved_port())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the store, as an operator's shell or a backup would."""
        with contextlib.closing(sqlite3.connect(self.store, isolation_level=None, timeout=0.2)) as other:
            with contextlib.suppress(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                with contextlib.suppress(sqlite3.OperationalError):
                    other.execute("ROLLBACK")

    def damage(self, chance: random.Random) -> str:
        """Damage the store beyond repair, and return how."""
        wal, kind = Path(f"{self.store}-wal"), chance.choice(["a page", "many pages", "the head", "the WAL", "deleted"])
        match kind:
            case "a page" | "many pages":
                pages = range(1, self.store.stat().st_size // 4096)
                for page in chance.sample(pages, min(len(pages), 1 if kind == "a page" else 40)):
                    self._overwrite(page * 4096, chance.randbytes(4096))
            case "the head":
                self._overwrite(0, chance.randbytes(100))
            case "the WAL":
                os.truncate(wal, wal.stat().st_size // 2 if wal.exists() else 0)
            case "deleted":
                for path in self.store.parent.glob("jobs.sqlite*"):
                    path.unlink()
        return kind

    def _overwrite(self, at: int, data: bytes) -> None:
        with self.store.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def store_size(self) -> int:
        return max(path.stat().st_size for path in self.store.parent.glob("jobs.sqlite*"))

    def heal(self) -> None:
        """Undo all faults."""
        self.clock.set(0)
        for engine in self.sound:
            engine.behave_again()
        for engine in self.shaky:
            engine.process.signal(signal.SIGCONT)
            engine.restart()
            engine.behave_again()
        for gateway in self.gateways:
            gateway.signal(signal.SIGCONT)
            gateway.may_write(None)
            if not gateway.alive():
                gateway.restart()
            elif gateway.deaths and time.monotonic() - gateway.deaths[-1] < 15:  # it may be draining
                with contextlib.suppress(Exception):
                    gateway.process.popen.wait(12)
                gateway.restart()

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.signal(signal.SIGCONT)
            gateway.signal(signal.SIGTERM)
        for gateway in self.gateways:
            with contextlib.suppress(Exception):
                gateway.process.popen.wait(15)
            gateway.process.close()
        for engine in (*self.sound, *self.shaky):
            engine.process.close()
        self._ports.close()
