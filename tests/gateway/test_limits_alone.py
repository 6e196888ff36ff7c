"""Limits tested on the objects that enforce them: each test sets one limit to a small value and exceeds it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hangup.config import AdmissionLimits, BackendSettings, LimitSettings, ReportLimits, Settings
from hangup.core import reasons
from hangup.core.admission import Admission, BackendLoad, Evidence, Ticket
from hangup.core.divergence import AlarmTerms, CounterSample, DivergenceAlarm
from hangup.core.jobs import ItemState, Kind
from hangup.core.reaper import Ladder, PendingStop
from hangup.errors import EngineFault
from hangup.gateway import divergence_monitor
from hangup.gateway.backends import figures
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.gateway import Gateway
from hangup.gateway.http.head import ResponseHead
from hangup.gateway.jobs.provider import _pace
from hangup.gateway.log import Log
from hangup.gateway.otel_environment import TraceTarget
from hangup.gateway.otlp import Exporter
from hangup.gateway.pauses import BackendPauses
from hangup.gateway.reaper import canary, restart
from hangup.gateway.reaper.renewal import ladder_terms
from hangup.gateway.routing import Wanted
from hangup.gateway.store.jobs import JobStore, NewItem
from support.job_registry import FakeGateway, answered, open_registry
from support.virtual import run_virtually
from support.waiting import soon

NOBODY = "http://127.0.0.1:9"
PATH = "/v1/chat/completions"
BATCH: dict[str, Any] = {"endpoint": PATH, "input_file_id": "f", "completion_window": "24h", "headers": {}}


@contextlib.contextmanager
def deaf() -> Iterator[str]:
    """Return the URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def backend(url: str = NOBODY, **limits: Any) -> Backend:
    return Backend(BackendSettings(name="b", url=url, engine="openai"), LimitSettings(**limits), asyncio.get_running_loop())


# Engines


def test_connect_s() -> None:
    class Hanging:
        async def create_connection(self, *_: object, **__: object) -> Any:
            await asyncio.Event().wait()

    async def main() -> None:
        one = backend(connect_s=0.05)
        one.pool._loop = cast(asyncio.AbstractEventLoop, Hanging())
        with pytest.raises(EngineFault, match=r"after 0\.05 s"):
            await one.pool.connect()

    asyncio.run(main())


def test_engine_receive_bytes_max() -> None:
    """The kernel buffers no more than this for a client that does not read; Linux doubles the value that it is given."""

    async def main() -> None:
        small, usual = (backend(engine_receive_bytes_max=size) for size in (4096, 128 * 1024))
        sizes = []
        for each in (small, usual):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                address = listener.getsockname()
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda each=each: EngineConnection(each.pool, 1024, each.limits.engine_receive_bytes_max),  # type: ignore[misc]
                    *address,
                )
                sock = connection.transport.get_extra_info("socket")
                sizes.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
                connection.abort()
        assert sizes[0] <= 2 * 4096 < sizes[1] <= 2 * 128 * 1024

    asyncio.run(main())


def test_figures_poll_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often hangup polls an engine's queue; twice as often once it knows that the engine queues."""
    polls: list[float] = []

    async def fetch(*_: object, **__: object) -> Any:
        polls.append(asyncio.get_running_loop().time())
        return SimpleNamespace(head=SimpleNamespace(status=200), body=b"")

    monkeypatch.setattr(figures, "fetch", fetch)
    load = SimpleNamespace(limiter=SimpleNamespace(queues=Evidence.NONE), unstarted=1, slots=0)
    watched: Any = SimpleNamespace(
        limits=LimitSettings(figures_poll_s=2.0),
        load=load,
        facts_known=True,
        reports_status=True,
        adapter=SimpleNamespace(status_path="/s", disturbed=False, read_status=lambda seen: None),
        settings=SimpleNamespace(shared=False),
        has_peers=False,
    )

    async def main() -> None:
        task = asyncio.create_task(figures.follow(watched, lambda *_: None))
        await asyncio.sleep(20.5)
        assert len(polls) == 10
        load.limiter.queues = Evidence.WAITING
        await asyncio.sleep(20)
        assert 19 <= len(polls) - 10 <= 20
        task.cancel()

    run_virtually(main())


def test_refusal_pause_s_max() -> None:
    async def main() -> None:
        paused: list[float] = []
        refusing = backend()
        pauses = BackendPauses(asyncio.get_running_loop(), lambda _, until: paused.append(until), lambda _: paused.clear())
        hour = ResponseHead(b"HTTP/1.1 429 Too Many\r\nretry-after: 3600\r\n\r\n")
        pauses.refused(refusing, 0.0, hour, LimitSettings(refusal_pause_s_max=0.05).refusal_pause_s_max)
        assert len(paused) == 1 and paused[0] < time.monotonic() + 1
        await soon(lambda: not paused)

    asyncio.run(main())


def test_model_refused_s() -> None:
    """How long hangup prefers other backends after a 404."""

    async def main() -> None:
        limits = LimitSettings(model_refused_s=5, health_interval_s=600)
        backends = tuple(BackendSettings(name=name, url=NOBODY, engine="openai", models=("m",)) for name in "ab")
        gateway = Gateway(Settings(backend=backends, limits=limits, jobs="none"), asyncio.get_running_loop(), Log("none", 9))
        routing, wanted, now = gateway.routing, Wanted("", "m"), time.monotonic()
        first = gateway.backends.by_name["a"]
        first.models_asked_at = asyncio.get_running_loop().time()
        assert routing.refused(first, wanted, "m") == frozenset("b")
        routing.catalog.expire(now + 4)
        assert routing.find(wanted).eligible == frozenset("b")
        routing.catalog.expire(now + 60)
        assert routing.find(wanted).eligible is None, "any"
        await gateway.close()

    asyncio.run(main())


# The reaper


def test_restarts_per_hour_max() -> None:
    async def main() -> None:
        restarted = backend(restarts_per_hour_max=2, abort_again_max=0)
        restarted.settings = BackendSettings(url=NOBODY, engine="openai", restart_command="true", canary=False)
        ladder, restarts = Ladder(ladder_terms(restarted)), 0
        for second in range(3000):
            steps = [step.what for step in ladder.advance(float(second), [PendingStop("z", 0.0)], "", 0)]
            if "restarting" in steps:
                restarts += 1
                ladder.restarted(True, float(second))
                ladder.canary(True, float(second))  # well again, and soon it has another zombie
        assert restarts == 2

    asyncio.run(main())


def test_restart_s() -> None:
    async def main() -> None:
        limits = LimitSettings(restart_s=0.1)
        began = time.monotonic()
        assert "timed out after 0.1 s" in await restart.run(["sleep", "600"], frozenset(), limits.restart_s)
        assert time.monotonic() - began < 300

    asyncio.run(main())


def test_canary_s() -> None:
    async def main() -> None:
        with deaf() as url:
            silent = backend(url, canary_s=0.2)
            assert "after 0.2 s" in await canary.send(silent, silent.limits.canary_s)
            silent.pool.close()

    asyncio.run(main())


# Jobs


@pytest.mark.parametrize("job_failures_max", [1, 2])
def test_job_failures_max(job_failures_max: int) -> None:
    async def main() -> None:
        store, host = JobStore(""), FakeGateway(limits=LimitSettings(job_failures_max=job_failures_max))
        async with open_registry(store, host) as registry:
            await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, [NewItem("c", PATH, b"{}")], window_s=3600)
            for attempt in range(job_failures_max):
                await soon(lambda at=attempt: len(host.items) > at, "the next attempt")  # type: ignore[misc]
                assert not registry.runner.writer.ended_by_state
                answered(host.items[attempt], b"{}", 502, reasons.ENGINE_DIED)
            await soon(lambda: registry.runner.writer.ended_by_state[ItemState.ERRORED] == 1)

    asyncio.run(main())


def test_job_yields_max() -> None:
    """An item that was preempted this often is not preempted again; other items are."""
    for yields, stays in ((1, False), (2, True)):
        limits = AdmissionLimits(job_yields_max=2, jobs_hold_back_share=0.0, hold_back_share=0.0)
        load = BackendLoad("s", slots=2)
        admission: Admission[str] = Admission(limits, [load], lambda: 0.5)
        item = Ticket("item", prompt=10, output_max=10, job=True, yields=yields)
        admission.arrive(item, "a", 0.0)
        admission.first_token(item, 0.0)
        assert item.placed_on is load
        actions = [action for at in range(3) for action in admission.arrive(Ticket(f"live{at}"), "a", 0.1)]
        yielded = [action.ticket.key for action in actions if action.reason is reasons.PREEMPTED]
        assert yielded == ([] if stays else ["item"])


def test_provider_limits_reach_the_pace() -> None:
    """`core/test_provider_job.py` exceeds each limit; this test checks that none is mistaken for another."""
    limits = LimitSettings(
        provider_look_s=1,
        provider_poll_s=2,
        provider_poll_max_s=3,
        provider_cancel_s=4,
        provider_cancel_attempts_max=5,
        provider_follow_s=6,
    )
    assert _pace(limits) == (1, 2, 3, 4, 5, 6)


# Admission


@pytest.mark.parametrize(("retry_share_max", "refused"), [(0.0, True), (1.0, False)])
def test_retry_share_max(retry_share_max: float, refused: bool) -> None:
    admission: Admission[str] = Admission(
        AdmissionLimits(retry_share_max=retry_share_max), [BackendLoad("s", slots=1)], lambda: 0.5
    )
    admission.arrive(Ticket("runs"), "a", 0.0)
    decisions = [admission.arrive(Ticket(f"again{at}", retry=True), "a", 0.0) for at in range(150)]
    found = [action.reason for actions in decisions for action in actions if action.reason is not None]
    assert (reasons.RETRY_BUDGET in found) == refused


# Reports


def test_trace_send_s() -> None:
    with deaf() as url, pytest.raises(TimeoutError):
        Exporter(TraceTarget(url + "/v1/traces"), "", LimitSettings(trace_send_s=0.1).trace_send_s).send([])


def test_webhook_s() -> None:
    with deaf() as url, pytest.raises(TimeoutError):
        divergence_monitor._post(url, b"{}", LimitSettings(webhook_s=0.1).webhook_s)


def alarm(limits: ReportLimits) -> DivergenceAlarm:
    terms = divergence_monitor._terms(limits)
    assert isinstance(terms, AlarmTerms)
    return DivergenceAlarm(terms)


@pytest.mark.parametrize(("divergence_share_max", "raised"), [(0.1, True), (0.9, False)])
def test_divergence_share_max(divergence_share_max: float, raised: bool) -> None:
    """The engine computes half of its tokens for nobody."""
    watched = alarm(LimitSettings(divergence_share_max=divergence_share_max, divergence_window_s=20, divergence_hold_s=20))
    for tick in range(200):
        seen = 1000 * tick if tick < 50 else 50_000 + 500 * (tick - 50)
        watched.observe(CounterSample(1000 * tick, 1.0, seen, 0, 5.0 * tick, 5.0 * tick), 5.0 * tick)
    assert (watched.finding is not None) == raised


@pytest.mark.parametrize(("divergence_yield_min", "raised"), [(0.2, False), (0.6, True)])
def test_divergence_yield_min(divergence_yield_min: float, raised: bool) -> None:
    """The engine does not count its tokens, and delivers four tenths of what it used to."""
    watched = alarm(LimitSettings(divergence_yield_min=divergence_yield_min, divergence_window_s=20, divergence_hold_s=20))
    seen = 0
    for tick in range(400):
        seen += 500 if tick < 200 else 200
        watched.observe(CounterSample(None, 1.0, seen, 0, 5.0 * tick, 5.0 * tick), 5.0 * tick)
        if tick > 200 and watched.finding is not None:
            break
    assert (watched.finding is not None) == raised
