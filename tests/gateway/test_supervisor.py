"""The supervisor alone, without processes: a slot always gets a worker again, and never two."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient

from hangup.config import BackendSettings, LimitSettings, Settings
from hangup.config.load import Configuration
from hangup.errors import HangupError
from hangup.gateway.admin.guard import Policy
from hangup.gateway.fixed_settings import needs_restart
from hangup.gateway.workers import supervisor as supervisor_module
from hangup.gateway.workers.admin import WholeAdmin, make_whole_app
from hangup.gateway.workers.asgi import HOST
from hangup.gateway.workers.channel import unpacked
from hangup.gateway.workers.process import WorkerProcess
from hangup.gateway.workers.settings import undrained
from hangup.gateway.workers.supervisor import Supervisor
from hangup.interpreter import command_for
from support.linux import proc
from support.processes import Process, StandIn, descendants
from support.waiting import soon, wait_until


class Started:
    """What a supervisor has started: `start` stands for its `_start`."""

    def __init__(self) -> None:
        configuration = Configuration(Settings(backend=(BackendSettings(url="http://127.0.0.1:9"),)), {})
        self.supervisor = Supervisor(configuration, lambda: configuration, 2)
        self.errors: list[str] = []
        self.supervisor._log = SimpleNamespace(event=lambda event, **fields: self.errors.append(fields.get("error", "")))  # type: ignore[assignment]
        self.workers: list[Any] = []
        self.failures = 0  # how many starts fail
        self.supervisor._start = self.start  # type: ignore[method-assign]

    async def start(self, slot: int, *, replaces: bool = True) -> Any:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        worker = self.new(slot)
        if replaces:
            self.supervisor.by_slot[slot] = worker
        return worker

    def new(self, slot: int) -> Any:
        sent: list[str] = []
        worker: Any = SimpleNamespace(
            name=f"{slot}.{len(self.workers)}", slot=slot, ready=False, leaving=False, failure="", sent=sent
        )
        worker.channel = SimpleNamespace(send=lambda kind, **fields: sent.append(kind))
        worker.listen_on = lambda numbers: sent.append("listen")
        self.workers.append(worker)
        self.supervisor._all[worker.name] = worker
        return worker


def test_a_worker_that_the_system_cannot_start_is_started_later() -> None:
    async def run() -> None:
        started = Started()
        started.failures = 2
        async with asyncio.timeout(60):
            await started.supervisor._replace(1)
        assert started.supervisor.by_slot == [None, started.workers[0]] and len(started.workers) == 1
        assert started.errors == ["cannot start a process: [Errno 11] Resource temporarily unavailable"] * 2

    asyncio.run(run())


@pytest.mark.parametrize("again", [False, True], ids=["before its successor starts", "after that"])
def test_a_worker_that_dies_while_it_is_rolled_has_one_successor(again: bool) -> None:
    async def run() -> None:
        started = Started()
        supervisor = started.supervisor
        rolling = asyncio.create_task(supervisor._replace_gently(0))
        async with asyncio.timeout(60):
            await soon(lambda: bool(started.workers))
            (new,) = started.workers
            if again:  # the dead one's successor was started first, and is not needed any more
                await supervisor._replace(0)
            new.ready = True
            supervisor._changed.set()
            assert await rolling
            await supervisor._replace(0)  # the pause before the successor is over
        assert supervisor.by_slot[0] is new
        others = [worker for worker in started.workers if worker is not new]
        assert len(others) == again and all(worker.leaving and worker.sent == ["listen", "drain"] for worker in others)

    asyncio.run(run())


def test_a_first_start_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "_START_S", 0.05)

    async def run() -> None:
        started = Started()
        with pytest.raises(HangupError, match=r"worker 0 was not ready within 0\.05 s"):
            await started.supervisor._start_all()

    asyncio.run(run())


def test_a_new_worker_drains_backends_of_any_name() -> None:
    async def run() -> None:
        started, asked = Started(), list[str]()
        worker = started.new(0)

        async def ask(method: str, target: str, within_s: float) -> None:
            asked.append(target)

        worker.ask, worker.process = ask, SimpleNamespace(pid=1)
        started.supervisor.drained_backends = {"10.0.0.1:80/a b?c#d%41"}
        await started.supervisor._became_ready(worker)
        (target,) = asked
        assert unquote(target) == "/api/backends/10.0.0.1:80/a b?c#d%41/drain"
        assert not set(target) & set("?# ") and "%2541" in target

    asyncio.run(run())


def test_a_backend_that_is_drained_while_a_worker_starts_is_drained_there() -> None:
    """Or undrained, whichever an operator wanted last."""

    async def run() -> None:
        started, asked = Started(), list[tuple[str, str]]()
        worker, drained = started.new(0), started.supervisor.drained_backends

        async def ask(method: str, target: str, within_s: float) -> None:
            asked.append((method, target.split("/")[3]))
            if len(asked) == 1:
                drained.remove("a")
                drained.add("b")

        worker.ask, worker.process = ask, SimpleNamespace(pid=1)
        drained.add("a")
        await started.supervisor._became_ready(worker)
        assert asked == [("PUT", "a"), ("DELETE", "a"), ("PUT", "b")] and worker.ready

    asyncio.run(run())


def test_a_drain_is_known_before_the_workers_are_asked() -> None:
    """One that starts meanwhile is not asked: it learns of the drain from the supervisor."""
    drained: set[str] = set()
    known: list[set[str]] = []

    async def ask(method: str, target: str, within_s: float) -> tuple[int, str]:
        known.append(set(drained))
        return (404, '{"error":"there is no backend x"}') if "/x/" in target else (200, '{"backends":[]}')

    whole: Any = SimpleNamespace(
        answering_workers=lambda: [SimpleNamespace(ask=ask)], silent_slots=list, drained_backends=drained, fault=print
    )
    client = TestClient(make_whole_app(WholeAdmin(whole), Policy.of("", "", HOST)), f"http://{HOST}", headers={"x-hangup": "1"})
    for method, name, status in (("PUT", "b", 200), ("PUT", "x", 404), ("PUT", "b", 200), ("DELETE", "b", 200)):
        assert client.request(method, f"/api/backends/{name}/drain").status_code == status
    assert known == [{"b"}, {"b", "x"}, {"b"}, set()] and drained == set()


def test_a_reload_ends_the_drain_of_backends_that_it_replaces() -> None:
    """In the workers it does; one that starts later must not drain them again."""
    a, b, c = (BackendSettings(url=f"http://{name}:1", name=name) for name in "abc")
    by_dns = BackendSettings(url="dns+http://pods:1")
    heavier = replace(b, weight=2.0)
    drained = {"a", "b", "10.0.0.1:1"}

    def ended(old: tuple[BackendSettings, ...], new: tuple[BackendSettings, ...], **more: Any) -> set[str]:
        return undrained(drained, Settings(backend=old), Settings(backend=new, **more))

    assert ended((a, b, by_dns), (a, b, by_dns, c)) == set()
    assert ended((a, b, by_dns), (a, heavier, by_dns)) == {"b"}
    assert ended((a, b, by_dns), (b, by_dns)) == {"a"}
    assert ended((a, b, by_dns), (a, b, replace(by_dns, weight=2.0))) == {"10.0.0.1:1"}
    assert ended((a, replace(b, slots=4)), (a, replace(b, slots=4)), slots=9) == {"a"}


def test_a_worker_that_starts_after_a_reload_differs_from_the_others_in_nothing_that_needs_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would want TLS on the same port, or write to another ledger."""
    backend = BackendSettings(url="http://127.0.0.1:9")
    old = Settings(backend=(backend,), ledger="/old", tls_cert="", limits=LimitSettings(ended_calls_max=9))
    new = Settings(backend=(backend,), ledger="/new", tls_cert="/cert", tls_key="/key", heartbeat_s=3.0)
    sent: list[str] = []

    async def start(slot: int, name: str, sockets: object) -> Any:
        return SimpleNamespace(name=name, channel=SimpleNamespace(send=lambda kind, packed, **_: sent.append(packed)))

    async def follow(worker: object) -> None: ...

    async def run() -> None:
        supervisor = Supervisor(Configuration(old, {}), lambda: Configuration(new, {}), 2)
        supervisor._folder, supervisor._port, supervisor._sockets, supervisor._admin_host = tmp_path, 1, [], "127.0.0.1"
        supervisor._policy, supervisor._follow = Policy(), follow  # type: ignore[method-assign]
        supervisor._engines = SimpleNamespace(use=lambda backends, stop_s: None)  # type: ignore[assignment]
        await supervisor._start(0)
        await supervisor._reload()
        await supervisor._start(1)
        await supervisor._tasks.close()

    monkeypatch.setattr(WorkerProcess, "start", start)
    asyncio.run(run())
    first, reloaded, later = (unpacked(text).settings for text in sent)
    assert (first.ledger, first.heartbeat_s, later.heartbeat_s) == ("/old", 0.0, 3.0)
    assert needs_restart(first, later) == [] and (later.tls_cert, later.tls_key) == ("", "")
    assert needs_restart(first, reloaded) == ["ledger", "ended_calls_max"], "the others say what is not in effect"


def test_what_workers_could_not_use_is_refused_as_a_whole(tmp_path: Path) -> None:
    """They would keep the old configuration, but one that starts later could not start."""
    backend = BackendSettings(url="http://127.0.0.1:9")
    old = Settings(backend=(backend,), tls_cert=str(tmp_path / "old"), tls_key=str(tmp_path / "old"))
    events: list[dict[str, Any]] = []

    async def run() -> None:
        renewed = replace(old, tls_cert=str(tmp_path / "new"))
        supervisor = Supervisor(Configuration(old, {}), lambda: Configuration(renewed, {}), 2)
        supervisor._log = SimpleNamespace(event=lambda event, **fields: events.append({event: fields}))  # type: ignore[assignment]
        supervisor._admin_host = "127.0.0.1"
        await supervisor._reload()
        assert supervisor.configuration.settings is old

    asyncio.run(run())
    assert len(events) == 1 and "tls_cert" in str(events[0]["config_reload_failed"])


def test_the_others_accept_for_a_worker_that_leaves_until_its_successor_is_ready() -> None:
    async def run() -> None:
        started = Started()
        supervisor = started.supervisor
        leaving, other = supervisor.by_slot[:] = started.new(0), started.new(1)
        leaving.ready = other.ready = True
        other.listen_on = lambda numbers: other.sent.append(sorted(numbers))
        supervisor._handle(leaving, {"kind": "draining"})
        assert other.sent == [[0, 1]]
        await supervisor._tasks.close()

    asyncio.run(run())


def test_an_error_of_the_admin_port_is_logged_and_answered() -> None:
    faults: list[Exception] = []

    def fail() -> list[Any]:
        raise KeyError("x")

    whole: Any = SimpleNamespace(answering_workers=fail, fault=faults.append)
    client = TestClient(
        make_whole_app(WholeAdmin(whole), Policy.of("", "", HOST)), f"http://{HOST}", raise_server_exceptions=False
    )
    answer = client.get("/api/calls")
    assert answer.status_code == 500 and "see the gateway log" in answer.json()["error"]
    assert [type(fault) for fault in faults] == [KeyError]


def test_a_signal_during_the_start_leaves_nothing_behind(tmp_path: Path) -> None:
    """One worker is stopped before it is ready, so the start would take for ever."""
    flags = ("--port", "0", "--admin-port", "0", "--workers", "2", "--jobs", "none")
    with StandIn() as engine, Process("serve", *flags, "--upstream", engine.url, env={"TMPDIR": str(tmp_path)}) as process:
        supervisor = proc(process.popen.pid, "cmdline").read_text()

        def workers() -> list[int]:
            """A child that has not started its program yet is still the supervisor: stopped then, both would hang."""
            return [pid for pid in descendants(process.popen.pid) if proc(pid, "cmdline").read_text() != supervisor]

        (first, *_) = wait_until(workers, what="a worker")
        os.kill(first, signal.SIGSTOP)
        wait_until(lambda: any(tmp_path.glob("hangup-*")), what="its folder")
        process.signal(signal.SIGTERM)
        process.wait()
        assert list(tmp_path.iterdir()) == [] and not proc(first).exists()


def test_files_in_the_current_directory_are_not_taken_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a command like `hangup`; `python -m hangup` looks there itself, and so do its workers."""
    (tmp_path / "queue.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    for first, output in (("/somewhere/bin", ""), (str(tmp_path), "not this one\n"), ("", "not this one\n")):
        monkeypatch.setattr(sys, "path", [first, *sys.path[1:]])
        done = subprocess.run([*command_for("queue")], capture_output=True, text=True, timeout=60, check=False)
        assert (done.stderr, done.returncode) == (output, bool(output))
