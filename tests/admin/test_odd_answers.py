"""Engines and exporters that answer late, with odd numbers or with half a page: the monitor continues, and counts nothing
twice."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hangup.config import BackendLimits, LimitSettings, Settings
from hangup.core import reasons
from hangup.core.account import Entry
from hangup.core.admission import BackendHealth
from hangup.core.call import Call
from hangup.core.ledger import Ledger
from hangup.gateway.apis.routes import Router
from hangup.gateway.backends import busy as busy_module
from hangup.gateway.backends import counters
from hangup.gateway.backends.adapters.base import Seen, counted, gauges, number
from hangup.gateway.backends.counters import ReportedCounters, gpu_use, read
from hangup.gateway.divergence_monitor import DivergenceMonitor
from hangup.gateway.relay.events import usage_of
from hangup.gateway.tracing import Tracer
from support.waiting import wait_until

ODD_NUMBERS = ["+Inf", "-Inf", "NaN", "1e999", "---", "e", "1.2.3", "1" * 400]


@pytest.mark.parametrize("odd", ODD_NUMBERS)
def test_numbers_that_are_none(odd: str) -> None:
    page = f"vllm:generation_tokens_total {odd}\nvllm:num_requests_running {odd}\n".encode()
    assert read(page) == (None, None)
    assert read(page + b"vllm:generation_tokens_total 7\n").tokens == 7, "what can be read is"
    assert gpu_use(f'DCGM_FI_DEV_GPU_UTIL{{gpu="0"}} {odd}\n'.encode()) is None
    assert gauges(page) == {}
    assert counted(Seen(200, "", page), "vllm:num_requests_running", "w", "vllm:generation_tokens_total") is None


@pytest.mark.parametrize("odd", [float("inf"), float("nan"), 1e300, 10**30, "²", "9" * 5000, None, [], -(10**30)])
def test_whole_numbers_that_are_none(odd: object) -> None:
    assert number(odd) == 0


@pytest.mark.parametrize("odd", [2**64 - 1, -1, 1.5, "7", None, True, 10**30])
def test_usage_that_no_call_can_have(odd: object) -> None:
    route = Router(()).find("/v1/chat/completions")
    assert route is not None
    usage = usage_of(route.api, {"usage": {"prompt_tokens": odd, "completion_tokens": odd}})
    assert usage is None or usage == (None, None)


def test_an_exporter_that_breaks_off() -> None:
    """For half a page, http.client raises an exception of its own, not an OSError."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nDCGM")

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        assert busy_module._dcgm(url, frozenset(), 5.0) is None
        thread.join(60)


class Books:
    def __init__(self) -> None:
        self.total = 0

    def add_computed(self, backend: str, tokens: int) -> None:
        self.total += tokens

    def add_uncounted(self, backend: str, tokens: int) -> None: ...

    def add(self, entry: Entry) -> None: ...


class FakeLog:
    def __init__(self) -> None:
        self.faults: list[Exception] = []

    def event(self, event: str, **fields: object) -> None: ...

    def fault(self, error: Exception) -> None:
        self.faults.append(error)


class ReaperAlone:
    """The reaper of a process without others, with nothing to stop."""

    leads = True

    def status(self, backend: object) -> None:
        return None

    def zombies_since(self, backend: object, since: float) -> list[Any]:
        return []

    def stops_of_others(self, backend: object) -> list[Any]:
        return []

    async def tokens_of_others(self, backend: object) -> None:
        return None

    async def calls_of_others(self, backend: object) -> tuple[int, float]:
        return 0, 0.0


class FakeBackend(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]  # a real one can be in a set


def make(books: Books, log: FakeLog, names: tuple[str, ...] = ("b",)) -> DivergenceMonitor:
    def backend(name: str) -> Any:
        time_of = SimpleNamespace(count=1, call_s=0.0, busy_s=0.0, pass_until=lambda now: None)
        load = SimpleNamespace(time=time_of, health=BackendHealth(), held=0)
        settings = SimpleNamespace(busy_from="engine", shared=False)
        return FakeBackend(name=name, load=load, settings=settings, limits=BackendLimits())

    settings = Settings(limits=LimitSettings(counters_interval_s=0.05))
    parts: dict[str, Any] = {
        "settings": lambda: settings,
        "backends": SimpleNamespace(by_name={name: backend(name) for name in names}),
        "registry": SimpleNamespace(live={}, ended=[]),
        "accounting": SimpleNamespace(ledger=Ledger(), store=books),
        "placement": SimpleNamespace(admission=SimpleNamespace(queue=SimpleNamespace(count=0))),
        "reaper": ReaperAlone(),
        "log": log,
    }
    return DivergenceMonitor(**parts)


def test_answers_that_would_overtake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report queries the engine during the monitor's own query: the older answer must not look like a restart."""
    counts = iter(range(5_000_000, 6_000_000, 10))
    delays = iter([0.0, 0.05, 0.0, 0.04, 0.0, 0.03, 0.0] * 10)

    async def ask(*_: object) -> ReportedCounters:
        tokens = next(counts)
        await asyncio.sleep(next(delays))
        return ReportedCounters(tokens, 1.0)

    monkeypatch.setattr(counters, "ask", ask)

    async def run() -> None:
        books = Books()
        monitor = make(books, FakeLog())
        await asyncio.gather(*(monitor.look() for _ in range(20)))
        assert books.total == 190, "what it computed between the first look and the last"

    asyncio.run(run())


def test_whatever_a_look_runs_into_the_watch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async def ask(backend: Any, *_: object) -> ReportedCounters:
        nonlocal looks
        looks += 1
        if backend.name == "odd":
            raise OverflowError("cannot convert float infinity to integer")
        return ReportedCounters(looks, 1.0)

    monkeypatch.setattr(counters, "ask", ask)

    async def run() -> None:
        log = FakeLog()
        monitor = make(Books(), log, ("odd", "sound"))
        watching = asyncio.create_task(monitor.run())
        async with asyncio.timeout(60):
            while len(monitor.history.within(60, time.time())[1]) < 3:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        assert not watching.done() and log.faults
        assert monitor.watched["sound"].computed is not None, "others are looked at"
        watching.cancel()

    asyncio.run(run())


def test_a_collector_that_answers_with_anything() -> None:
    class Exporter:
        def send(self, spans: object) -> None:
            raise RuntimeError("BadStatusLine, IncompleteRead or whatever else")

    tracer = Tracer(Exporter(), calls_max=10, release_s=0.0, close_s=5.0)  # type: ignore[arg-type]
    for n in range(2):
        call = Call(f"id{n}", 0.0)
        tracer.begin(call, None, "POST", "/")
        call.end(reasons.COMPLETED, 1.0)
        tracer.end(call)
        wait_until(lambda n=n: tracer.dropped == n + 1, what="the thread to try")  # type: ignore[misc]
    tracer.close()
