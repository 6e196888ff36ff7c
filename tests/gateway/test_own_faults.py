"""A bug of ours, injected at every step of a call, costs only that call, and leaves nothing behind.

The gateway runs in this process, so that a test can make any of its functions fail; the sockets are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from hangup import tasks
from hangup.config import BackendSettings
from hangup.core.admission import Admission
from hangup.core.call import Call
from hangup.core.ledger import Ledger
from hangup.gateway import answers
from hangup.gateway.accounting import Accounting
from hangup.gateway.backend_set import Backends
from hangup.gateway.backends import health
from hangup.gateway.backends.aborts import Aborts
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.backends.pool import Pool
from hangup.gateway.call_lines import CallLines
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.engine_request import EngineRequest, GenerationRequest
from hangup.gateway.intake import Intake
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.kinds.job_item import JobItemCall
from hangup.gateway.kinds.live import LiveCall
from hangup.gateway.placement import Placement
from hangup.gateway.reaper import Reaper
from hangup.gateway.relay.assemble import AssembleRelay
from hangup.gateway.relay.passthrough import PassRelay
from hangup.gateway.relay.stream import StreamRelay
from hangup.gateway.request_policy import CallIds, RequestPolicy
from hangup.gateway.routing import Routing
from hangup.gateway.stopping import Stopping
from support.house import EMBED, STREAM, WHOLE, Engine, House
from support.waiting import PATIENCE_S, soon

STEPS: list[tuple[Any, str, str, bytes]] = [
    (RequestPolicy, "admit", "/v1/chat/completions", STREAM),
    (Intake, "_choose_kind", "/v1/chat/completions", STREAM),
    (EngineRequest, "ticket", "/v1/chat/completions", STREAM),
    (CallIds, "new", "/v1/chat/completions", STREAM),
    (Placement, "first_token", "/v1/chat/completions", STREAM),
    (Placement, "place", "/v1/chat/completions", STREAM),
    (Backends, "succeeded", "/v1/chat/completions", STREAM),
    (Accounting, "record_end", "/v1/chat/completions", STREAM),
    (Accounting, "record_cost", "/v1/chat/completions", STREAM),
    (Stopping, "finish", "/v1/chat/completions", STREAM),
    (LiveCall, "body_arrived", "/v1/chat/completions", STREAM),
    (LiveCall, "_read", "/v1/chat/completions", STREAM),
    (LiveCall, "_continue", "/v1/chat/completions", STREAM),
    (LiveCall, "find_place", "/v1/chat/completions", STREAM),
    (LiveCall, "placed", "/v1/chat/completions", STREAM),
    (LiveCall, "_send", "/v1/chat/completions", STREAM),
    (LiveCall, "engine_answered", "/v1/chat/completions", STREAM),
    (LiveCall, "_choose_relay", "/v1/embeddings", EMBED),
    (LiveCall, "answer_whole", "/v1/chat/completions", WHOLE),
    (LiveCall, "_stop_work", "/v1/chat/completions", STREAM),
    (StreamRelay, "settle", "/v1/chat/completions", STREAM),
    (LiveCall, "_tell_client", "/v1/chat/completions", STREAM),
    (LiveCall, "_record_cost", "/v1/chat/completions", STREAM),
    (LiveCall, "first_token", "/v1/chat/completions", STREAM),
    (GenerationRequest, "encode", "/v1/chat/completions", STREAM),
    (GenerationRequest, "relay", "/v1/chat/completions", WHOLE),
    (Backend, "request", "/v1/chat/completions", STREAM),
    (Pool, "idle_connection", "/v1/chat/completions", STREAM),
    (Pool, "connect", "/v1/chat/completions", STREAM),
    (Pool, "connect_now", "/v1/chat/completions", STREAM),
    (Pool, "put_back", "/v1/chat/completions", STREAM),
    (EngineConnection, "_read_head", "/v1/chat/completions", STREAM),
    (EngineConnection, "ask", "/v1/chat/completions", STREAM),
    (EngineConnection, "release", "/v1/chat/completions", STREAM),
    (StreamRelay, "feed", "/v1/chat/completions", STREAM),
    (StreamRelay, "take", "/v1/chat/completions", STREAM),
    (StreamRelay, "finished", "/v1/chat/completions", STREAM),
    (AssembleRelay, "_take_events", "/v1/chat/completions", WHOLE),
    (AssembleRelay, "finished", "/v1/chat/completions", WHOLE),
    (AssembleRelay, "settle", "/v1/chat/completions", WHOLE),
    (PassRelay, "take", "/v1/embeddings", EMBED),
    (answers, "begin", "/v1/embeddings", EMBED),
    (answers, "error", "/nowhere", b"x"),
    (Call, "received", "/v1/chat/completions", STREAM),
    (Call, "sent", "/v1/chat/completions", STREAM),
    (Call, "answered", "/v1/chat/completions", STREAM),
    (Ledger, "record", "/v1/chat/completions", STREAM),
    (CallLines, "ended", "/v1/chat/completions", STREAM),
    (Admission, "arrive", "/v1/chat/completions", STREAM),
    (ClientConnection, "_take_head", "/v1/chat/completions", STREAM),
    (ClientConnection, "_body_complete", "/v1/chat/completions", STREAM),
    (ClientConnection, "finish", "/v1/chat/completions", STREAM),
    (ClientConnection, "begin", "/v1/chat/completions", STREAM),
    (ClientConnection, "send", "/v1/chat/completions", STREAM),
]


@pytest.mark.parametrize(("where", "step", "path", "body"), STEPS, ids=[f"{w.__name__}.{s}" for w, s, _, _ in STEPS])
def test_costs_one_call(where: Any, step: str, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with House() as house:
            await house.at_rest()
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            failures = _fail_once(monkeypatch, where, step)
            if where is Pool and step.startswith("connect"):
                house.backend.pool.close_idle()
                house.backend.pool._closed = False
                if step == "connect":
                    house.backend.pool._nearby = None
            await house.post(path, body)
            assert failures == [step], "the step was not taken"
            await house.at_rest()
            for each, asked in (("/v1/embeddings", EMBED), ("/v1/chat/completions", STREAM), ("/v1/chat/completions", WHOLE)):
                assert (await house.post(each, asked)).startswith(b"HTTP/1.1 200")
            await house.at_rest()

    uvloop.run(run())


HANGUP_STEPS = [
    (LiveCall, "client_left"),
    (Stopping, "abort"),
    (Aborts, "stop"),
    (Reaper, "add"),
    (Accounting, "note_savings"),
]


@pytest.mark.parametrize(("where", "step"), HANGUP_STEPS, ids=[f"{w.__name__}.{s}" for w, s in HANGUP_STEPS])
def test_costs_one_call_whose_client_hung_up(where: Any, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine connection, its slot and its place are still free for the next call."""

    async def run() -> None:
        async with House() as house:
            await house.at_rest()
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            port = house.listener.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            body = STREAM.replace(b'"x"', b'"slow"')
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await asyncio.wait_for(reader.readuntil(b"data: "), PATIENCE_S)
            assert house.backend.pinned == 1
            failures = _fail_once(monkeypatch, where, step)
            writer.transport.abort()
            await soon(lambda: bool(failures), "the step that fails")
            await house.at_rest()
            assert (await house.post("/v1/chat/completions", STREAM)).startswith(b"HTTP/1.1 200")
            await house.at_rest()

    uvloop.run(run())


def _fail_once(monkeypatch: pytest.MonkeyPatch, where: Any, step: str) -> list[str]:
    """Make the next call of this function raise, and no call after it."""
    real: Callable[..., Any] = getattr(where, step)
    failures: list[str] = []

    def failing(*arguments: Any, **named: Any) -> Any:
        if failures:
            return real(*arguments, **named)
        failures.append(step)
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(where, step, failing)
    return failures


def test_a_watch_that_fails_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One odd answer must not end the health checks of a backend for good."""
    monkeypatch.setattr(tasks, "_PAUSE_S", (0.01, 0.01))
    failures: list[str] = []
    checked = asyncio.Event()

    async def check(backend: Backend) -> str | None:
        if len(failures) < 3:
            failures.append(backend.name)
            raise OverflowError("cannot convert float infinity to integer")
        checked.set()
        return None

    async def run() -> None:
        monkeypatch.setattr(health, "check", check)
        async with House() as house:
            await asyncio.wait_for(checked.wait(), 60)
            assert failures == [house.backend.name] * 3

    uvloop.run(run())


@pytest.mark.parametrize("step", ["_read", "find_place", "_check_limits"])
def test_costs_one_item_of_a_job(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item has no client connection that would notice."""
    over: list[str] = []
    claim: Any = SimpleNamespace(path="/v1/chat/completions", body=WHOLE, job="j", n=0, single=True)
    owner: Any = SimpleNamespace(
        item_started=lambda item: None, item_ended=lambda item, call, *_: over.append(call.reason.code)
    )

    async def run() -> None:
        async with House() as house:
            failures = _fail_once(monkeypatch, JobItemCall, step)
            item = ItemClient(claim, "default", asyncio.get_running_loop(), owner)
            house.gateway.jobs_port.run_item(item, "item", {})
            if item.flow is not None:
                item.flow.on_due()
            assert (failures, over) == ([step], ["internal_error"])
            await house.at_rest()

    uvloop.run(run())


def test_heartbeats_that_fail_end_their_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with House() as house:
            failures = _fail_once(monkeypatch, LiveCall, "_send_heartbeat")
            real = LiveCall._expect_heartbeat

            def expect(flow: LiveCall, engine_request: GenerationRequest) -> None:
                real(flow, engine_request)
                flow.ports.loop.call_soon(flow._beat)

            monkeypatch.setattr(LiveCall, "_expect_heartbeat", expect)
            await house.post("/v1/chat/completions", STREAM)
            assert failures
            await house.at_rest()

    uvloop.run(run())


RELOAD_STEPS: list[tuple[Any, str]] = [
    (Intake, "configure"),
    (Placement, "configure"),
    (Pool, "close_idle"),
    (Backends, "_remove"),
    (Backend, "take_limits"),
    (Reaper, "watch"),
    (Placement, "use"),
    (Accounting, "take_prices"),
    (Routing, "configure"),
]


@pytest.mark.parametrize(("owner", "name"), RELOAD_STEPS, ids=lambda value: getattr(value, "__name__", value))
def test_a_bug_in_a_reload_leaves_no_backend_between_in_and_out(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever step fails once, the next reload succeeds, and both the new and the old backend can be used again."""

    async def main() -> None:
        async with House() as house:
            gateway, other = house.gateway, Engine()
            first = gateway.settings
            second = replace(first, backend=(BackendSettings(url=await other.start(), engine="openai"),))
            real, failures = getattr(owner, name), list[str]()

            def failing(*arguments: Any, **named: Any) -> Any:
                if not failures:
                    failures.append(name)
                    raise KeyError("a bug")
                return real(*arguments, **named)

            monkeypatch.setattr(owner, name, failing)
            assert not gateway.configure(second), "it is told"
            assert failures and gateway.settings is second
            for settings in (second, first):
                assert gateway.configure(settings)
                assert [backend.settings for backend in gateway.backends.by_name.values()] == list(settings.backend)
                house.backend = next(iter(gateway.backends.by_name.values()))
                assert not house.backend.load.health.retired
                assert b"200 OK" in await house.post("/v1/embeddings", EMBED)
                await soon(lambda: house.backend.facts_known, "its health check")
            assert len(gateway.backends._watches) == len(gateway.backends._figures) == 1
            await house.at_rest()
            await other.close()

    asyncio.run(main())
