"""A failure on the way must not cost a place, a slot or the end of a pause, and an unknown state must not be taken for
"gone"."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hangup.config import BackendSettings, LimitSettings
from hangup.core import reasons
from hangup.core.call import Call
from hangup.core.jobs import AfterEffects, Cause, JobStatus, Kind, after
from hangup.core.reaper import PendingStop, Rung, StopState
from hangup.errors import OutOfResources
from hangup.gateway import job_opener, server, stuck_calls
from hangup.gateway.apis.hosted_jobs import read_answer
from hangup.gateway.backends import health
from hangup.gateway.backends.adapters import Facts, Seen
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.fetch import Fetched
from hangup.gateway.call_lines import CallLines
from hangup.gateway.http.head import ResponseHead
from hangup.gateway.jobs import provider
from hangup.gateway.log import Log
from hangup.gateway.pauses import BackendPauses
from hangup.gateway.reaper import canary, renewal
from hangup.gateway.reaper.stats import ReaperStats
from hangup.gateway.reaper.watch import BackendWatch
from support.house import EMBED, House
from support.waiting import soon


class _Loop:
    """An event loop that cannot open sockets."""

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self._loop = loop
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, *_: object, **__: object) -> Any:
        raise OSError(self._number, "the system has none left")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL])
def test_an_engine_is_not_blamed_for_what_this_process_lacks(number: int) -> None:
    """File descriptors and ports belong to this process: without them, nothing is known about an engine."""

    async def main() -> None:
        async with House() as house:
            backend = house.backend
            watch = house.gateway.stopping.reaper._watches[backend]
            backend.pool._loop = cast(asyncio.AbstractEventLoop, _Loop(asyncio.get_running_loop(), number))
            backend.pool.limits = LimitSettings(engine_idle_s=0)
            while (kept := backend.pool.idle_connection()) is not None:
                kept.abort()
            for _ in range(backend.limits.failures_max + 1):
                answer = await house.post("/v1/embeddings", EMBED)
                assert b" 503 " in answer and b"out_of_resources" in answer and b"retry-after" in answer, "it is ours"
            assert backend.load.health.up and not backend.load.health.failures
            with pytest.raises(OutOfResources):
                await health.check(backend)
            held = PendingStop("x", time.monotonic() - 3600)
            watch.pending_stops.held.append(held)
            await watch._ask(time.monotonic())
            assert watch.pending_stops.held == [held], "an engine that could not be asked has not said that it is done"
            watch.pending_stops.held.clear()

    asyncio.run(main())


def test_an_item_of_a_job_does_not_fail_for_what_this_process_lacks() -> None:
    for failures in (0, 99):
        step = after(reasons.OUT_OF_RESOURCES, 503, stopping=False, failures=failures, failures_max=3)
        assert step is AfterEffects.AGAIN


def test_a_cancel_at_a_provider_is_not_given_up_for_what_this_process_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt fails at once; only failures of the provider may use up the attempts."""
    sent: list[str] = []

    async def fetch(_: object, method: str, path: str, **__: object) -> Fetched:
        sent.append(method)
        if len(sent) <= 10:
            raise OutOfResources(reasons.OUT_OF_RESOURCES, "no descriptors")
        body = b'{"id":"batch_1","object":"batch","status":"cancelled"}'
        return Fetched(ResponseHead(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), body)

    monkeypatch.setattr(provider, "fetch", fetch)

    async def main() -> None:
        loop, events = asyncio.get_running_loop(), list[str]()
        limits = LimitSettings(provider_poll_s=0.01, provider_poll_max_s=0.02)
        backend = Backend(BackendSettings(url="http://127.0.0.1:9", name="b", engine="openai"), limits, loop)
        host = SimpleNamespace(limits=limits, backends={"b": backend}, log_event=lambda event, **_: events.append(event))
        jobs = provider.Provider(cast(Any, host), loop)
        accepted = read_answer(Kind.BATCH, b'{"id":"batch_1","object":"batch","status":"in_progress"}')
        assert accepted is not None
        job = jobs.follow(accepted, Kind.BATCH, backend, provider.ProviderAccount("t", []), None)
        assert job is not None
        jobs.cancel(job, Cause.CANCELLED)
        await soon(lambda: job.state.finished)
        assert job.state.status is JobStatus.CANCELLED and "job_cancel_timed_out" not in events
        assert sent == ["POST"] * 11 + ["GET"]
        await jobs.close()

    asyncio.run(main())


def test_the_reaper_asks_at_its_usual_pace_while_this_process_lacks_descriptors() -> None:
    """Each query fails at once: without a pause, queries would take all of the CPU."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        backend = Backend(BackendSettings(url="http://127.0.0.1:9", engine="vllm"), LimitSettings(), loop)
        backend.pool._loop = cast(asyncio.AbstractEventLoop, _Loop(loop, errno.EMFILE))
        backend.use_adapter(backend.adapter, Facts(reports_status=True))
        watch = BackendWatch(
            backend, cast(Any, None), cast(Any, SimpleNamespace(waiting=lambda _: ((), 0.0))), ReaperStats([], 9)
        )
        asked, real = list[float](), watch._ask

        async def ask(asked_at: float) -> None:
            asked.append(time.monotonic())
            await real(asked_at)

        watch._ask = ask  # type: ignore[method-assign]
        watch.add(PendingStop("x", time.monotonic()), first_token=True)
        pace_s = min(backend.adapter.poll_s, backend.adapter.quick_poll_s or math.inf)
        await soon(lambda: len(asked) >= 4, "four questions")
        await watch.close()
        assert asked[3] - asked[0] >= 2.9 * pace_s
        assert [stop.call_id for stop in watch.pending_stops.held] == ["x"]

    asyncio.run(main())


def test_a_canary_that_cannot_be_sent_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few failed canaries would restart an engine that has recovered."""
    tries: list[str] = []

    async def fetch(_: object, method: str, path: str, *__: object, **___: object) -> Fetched:
        tries.append(path)
        if len(tries) <= 5:
            raise OutOfResources(reasons.OUT_OF_RESOURCES, "no descriptors")
        return Fetched(ResponseHead(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), b"")

    monkeypatch.setattr(canary, "fetch", fetch)
    monkeypatch.setattr(renewal, "_HEALTH_PAUSE_S", 0.01)

    async def main() -> None:
        settings = BackendSettings(url="http://127.0.0.1:9", engine="openai", canary=True)
        backend = Backend(settings, LimitSettings(), asyncio.get_running_loop())
        steps: list[str] = []
        host = SimpleNamespace(log_event=lambda event, **fields: steps.append(fields["step"]), load_changed=lambda _: None)
        watch = BackendWatch(backend, cast(Any, None), cast(Any, host), ReaperStats([], 9))
        watch.ladder._to_canary(time.monotonic(), "the engine has recovered")
        await watch._canary()
        await watch.close()
        assert (watch.ladder.rung, steps, len(tries)) == (Rung.HEALTHY, ["healthy"], 6)

    asyncio.run(main())


def test_an_engine_that_does_not_answer_is_not_taken_for_a_lesser_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query may time out at a start under load; until its restart, the engine would count as one without aborts."""
    vllm = {
        "/v1/models": Seen(200, "", b'{"data":[{"id":"m","owned_by":"vllm"}]}'),
        "/version": Seen(200, "", b'{"version":"0.11.0"}'),
    }
    silent = {"/v1/models"}

    async def see(_: Backend, path: str, *__: object) -> Seen:
        return Seen(0, "", b"timed out") if path in silent else vllm.get(path, Seen(404, "", b""))

    monkeypatch.setattr(health, "see", see)

    async def main() -> None:
        backend = Backend(BackendSettings(url="http://127.0.0.1:9"), LimitSettings(), asyncio.get_running_loop())
        await health.learn(backend, 1)
        assert not backend.facts_known, "the next check asks again"
        silent.clear()
        await health.learn(backend, 1)
        assert backend.facts_known and backend.adapter.name == "vllm"
        silent.add("/v1/models")
        backend.facts_known = False
        await health.learn(backend, 1)
        assert backend.adapter.name == "vllm", "nothing was learned"
        for _ in range(2):
            assert not backend.facts_known
            await health.learn(backend, 1)
        assert backend.facts_known, "an engine that never answers is not asked for ever"

    asyncio.run(main())


def test_a_bug_in_one_release_keeps_no_other_place() -> None:
    class Host:
        freed: list[str] = []
        told_of: list[str] = []

        def release(self, backend: Backend, stop: PendingStop) -> None:
            if stop.call_id == "first":
                raise KeyError("a bug")
            self.freed.append(stop.call_id)

        def log_event(self, event: str, **fields: Any) -> None:
            self.told_of.append(event)

    async def main() -> None:
        host = Host()
        settings = BackendSettings(url="http://127.0.0.1:9", engine="openai")
        backend = Backend(settings, LimitSettings(), asyncio.get_running_loop())
        watch = BackendWatch(backend, cast(Any, None), cast(Any, host), ReaperStats([], 9))
        await watch._release([PendingStop(name, 0.0) for name in ("first", "second", "third")], StopState.VERIFIED)
        await watch.close()
        assert (host.freed, host.told_of) == (["second", "third"], ["reaper_check_failed"])

    asyncio.run(main())


def test_a_bug_in_one_call_leaves_no_other_in_a_stuck_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flow:
        def __init__(self) -> None:
            self.faults: list[Exception] = []
            self.left = False

        def abandon(self, why: str) -> None:
            self.left = True
            if self is flows[0]:
                raise KeyError("a bug")

        def fault(self, error: Exception) -> None:
            self.faults.append(error)

    flows = [Flow(), Flow(), Flow()]
    monkeypatch.setattr(stuck_calls, "_is_inside", lambda flow, _: True)
    assert asyncio.run(stuck_calls.abandon(cast(Any, flows), cast(Any, None), "why")) == 3
    assert all(flow.left for flow in flows) and [len(flow.faults) for flow in flows] == [1, 0, 0]


def test_a_pause_ends_though_a_backend_of_the_same_name_was_replaced() -> None:
    """After a reload, calls may still run on the old backend, whose pauses do not apply to the new one."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        settings = BackendSettings(name="same", url="http://127.0.0.1:9", engine="openai")
        old, new = (Backend(settings, LimitSettings(), loop) for _ in range(2))
        paused: dict[Backend, bool] = {}
        pauses = BackendPauses(loop, lambda each, _: paused.update({each: True}), lambda each: paused.update({each: False}))
        head = ResponseHead(b"HTTP/1.1 429 Too Many\r\nretry-after-ms: 50\r\n\r\n")
        late = ResponseHead(b"HTTP/1.1 429 Too Many\r\nretry-after: 3600\r\n\r\n")
        pauses.refused(new, 0.0, head, 3600.0)
        pauses.refused(old, 0.0, late, 3600.0)
        assert paused == {new: True, old: True}
        await soon(lambda: not paused[new])
        assert paused[old]
        pauses.close()

    asyncio.run(main())


class _Time:
    """The clock and the timers of an event loop, as far as log lines use them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: tuple[float, Any] | None = None

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, what: Any) -> Any:
        self.due = (when, what)
        return self

    def cancel(self) -> None:
        self.due = None

    def call_later(self, delay: float, what: Any) -> Any:
        return self.call_at(self.now + delay, what)


def _stopped_call(number: int) -> Call:
    call = Call(f"call-{number}", 0.0)
    call.pending_stops = (PendingStop(call.id, 0.0),)
    return call


def _lines(monkeypatch: pytest.MonkeyPatch, lines_max: int) -> tuple[CallLines, _Time, list[str]]:
    log, clock, written = Log("none", lines_max), _Time(), list[str]()
    monkeypatch.setattr(log, "record", lambda call: {"id": call.id})
    monkeypatch.setattr(log, "write", lambda record: written.append(record["id"]))
    return CallLines(log, cast(asyncio.AbstractEventLoop, clock), lambda: 1.0), clock, written


def test_lines_that_wait_cost_no_more_the_more_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def cpu_s(count: int) -> float:
        lines, clock, written = _lines(monkeypatch, 10**9)
        for number in range(count):
            clock.now = number * 1e-6
            lines.ended(_stopped_call(number))
        start = time.process_time()
        while clock.due is not None:
            (clock.now, look), clock.due = clock.due, None
            look()
        took = time.process_time() - start
        assert written == [f"call-{number}" for number in range(count)]
        return took

    small, large = min(cpu_s(500) for _ in range(3)), min(cpu_s(4000) for _ in range(3))
    assert large < 24 * small, "8 times the lines; if each look went through all of them it would be 64 times the work"


def test_no_more_lines_wait_than_the_log_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """log_lines_max, for lines that wait for the engine's confirmation: the next line is written without it."""
    lines, _, written = _lines(monkeypatch, 3)
    for number in range(5):
        lines.ended(_stopped_call(number))
    assert written == ["call-3", "call-4"]
    lines.close()
    assert sorted(written) == [f"call-{number}" for number in range(5)]


@pytest.mark.parametrize("told_to", [True, False])
def test_an_admin_server_that_ends_by_itself_has_failed(told_to: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """hangup must log, count and restart it: without it, operators see nothing."""

    class Ending:
        should_exit = told_to

        def __init__(self, app: object, sock: socket.socket, *_: object) -> None:
            sock.close()

        async def run_until_stopped(self) -> None: ...

    monkeypatch.setattr(server, "AdminServer", Ending)
    monkeypatch.setattr(server, "make_app", lambda view, policy: None)
    with socket.socket() as sock, contextlib.nullcontext() if told_to else pytest.raises(RuntimeError, match="by itself"):
        asyncio.run(object.__new__(server.Server)._serve_admin(cast(Any, None), sock, cast(Any, None), LimitSettings()))


def test_no_admin_server_is_started_again_while_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would stop it, and the process would wait for it for ever."""
    monkeypatch.setattr(server, "AdminServer", None)  # calling it would fail
    ending = object.__new__(server.Server)
    ending._ending = True
    with socket.socket() as sock:
        asyncio.run(ending._serve_admin(cast(Any, None), sock, cast(Any, None), LimitSettings()))


def test_a_store_that_opens_after_nobody_waits_for_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread and its file would have no owner."""
    begun, may_open, closed = threading.Event(), threading.Event(), list[str]()

    class Store:
        def __init__(self, path: str, *_: object) -> None:
            self.path = path
            begun.set()
            assert may_open.wait(60)

        def close(self) -> None:
            closed.append(self.path)

    monkeypatch.setattr(job_opener, "JobStore", Store)

    async def main() -> None:
        opener = job_opener.JobOpener(cast(Any, None), str)
        opening = asyncio.create_task(opener._opened("jobs.sqlite", 4096))
        await soon(begun.is_set)
        opening.cancel()
        await asyncio.sleep(0)
        may_open.set()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(main())
    assert closed == ["jobs.sqlite"]
