"""Looks at all live calls, which take longer the more there are, must not be one for each backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from bench.call_cost import functions_called

from hangup.config import BackendSettings, LimitSettings
from hangup.core.call import Call
from hangup.core.reaper import Waiting
from hangup.gateway import stopping, stuck_calls
from hangup.gateway.accounting import Accounting
from hangup.gateway.backends.backend import Backend
from hangup.gateway.placement import Placement
from hangup.gateway.reaper.reaper import Reaper
from hangup.gateway.registry import CallRegistry
from hangup.gateway.stopping import Stopping
from hangup.gateway.tokens_seen import token_row, tokens_seen


class _Live(dict[str, Any]):
    """Counts how often somebody looks at all calls."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def _flow(backend: Backend, number: int, *, text: bool) -> Any:
    call = Call(f"call-{number}", 1.0)
    call.received(2.0)
    call.sent(backend.name, 3.0)
    call.answered(4.0)
    call.progressed(number, 5.0 + number)
    return SimpleNamespace(call=call, backend=backend, ticket=None, may_be_silent=False, counts_tokens=text)


@pytest.fixture
def backends() -> Iterator[list[Backend]]:
    loop = asyncio.new_event_loop()
    yield [Backend(BackendSettings(url=f"http://127.0.0.1:{n + 1}", name=f"gpu-{n}"), LimitSettings(), loop) for n in range(50)]
    loop.close()


def test_one_look_counts_the_tokens_of_all_backends(backends: list[Backend]) -> None:
    registry: CallRegistry[Any] = CallRegistry(8)
    live = registry.live = _Live({f"call-{n}": _flow(b, n, text=n != 7) for n, b in enumerate(backends)})
    accounting = cast(Accounting, SimpleNamespace(ledger=SimpleNamespace(tokens={("ann", "gpu-3", "delivered"): 10})))
    seen = tokens_seen(accounting, registry)
    rows = [token_row(backend, seen, 1.0) for backend in backends]
    assert [row.seen for row in rows] == [n + 10 * (n == 3) for n in range(50)]
    assert [n for n, row in enumerate(rows) if row.textless] == [7]
    assert live.looks == 1


def test_one_look_finds_what_waits_for_any_backend(backends: list[Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    live = _Live({f"call-{n}": _flow(b, n, text=True) for n, b in enumerate(backends[1:], 1)})

    def wait() -> list[tuple[int, float]]:
        found = [made.waiting(backend) for backend in backends]
        return [(len(waits), last) for waits, last in found]

    monkeypatch.setattr(stopping, "_LOOK_PAUSE", 1e9)  # each look is used for half a second
    monkeypatch.setattr(stopping, "_LOOK_PAUSE_S_MAX", 1e9)
    made = Stopping(live, cast(Placement, None), cast(Any, None), cast(Any, None), 8)
    backends[0].last_output_at = 77.0
    assert wait() == [(0, 77.0), *((1, 5.0 + n) for n in range(1, 50))]
    backends[1].last_output_at = 99.0  # by a call that ended since
    assert wait()[1] == (1, 99.0)
    assert live.looks == 1


def test_a_look_at_one_engine_asks_only_those_at_the_same_engine(backends: list[Backend]) -> None:
    reaper = Reaper(cast(Any, None), cast(Any, None), 8)
    twin = Backend(backends[0].settings, LimitSettings(), backends[0].pool._loop)
    reaper._at = {backend.pool.address: [backend] for backend in backends}
    reaper._at[twin.pool.address].append(twin)
    assert reaper._other_loads(backends[0]) == [twin.load] and reaper._other_loads(twin) == [backends[0].load]
    assert reaper._other_loads(backends[1]) == []

    def look() -> None:
        reaper._other_loads(backends[1])

    assert functions_called(look) < 10, "fifty others are none of its business"


def test_the_longest_waits_are_found_with_few_steps_for_each_call(backends: list[Backend]) -> None:
    """One look is one turn of the loop, and there may be ten thousand calls."""
    backend = backends[0]
    flows = {number: _flow(backend, number, text=True) for number in range(1000)}
    looks: list[dict[Backend, stuck_calls.Waits]] = []
    assert functions_called(lambda: looks.append(stuck_calls.waiting(flows.values()))) < 2 * len(flows)
    assert looks == [{backend: ((Waiting(5.0, 0.0),), 1004.0)}]


def test_a_call_without_a_token_may_wait_longer(backends: list[Backend]) -> None:
    def unanswered(prompt: int, sent_at: float, *, blind: bool) -> Any:
        call = Call("call", 0.0)
        call.received(1.0)
        call.sent(backends[0].name, sent_at)
        ticket = SimpleNamespace(prompt=prompt, tokens_to_read=prompt, blind=blind)
        return SimpleNamespace(call=call, backend=backends[0], ticket=ticket, may_be_silent=False)

    def wait(*flows: Any) -> stuck_calls.Waits:
        return stuck_calls.waiting(flows)[backends[0]]

    short, long, whole = unanswered(10, 3.0, blind=False), unanswered(1000, 4.0, blind=False), unanswered(10, 2.0, blind=True)
    [few], _ = wait(short)
    [many], last_output_at = wait(short, long, _flow(backends[0], 7, text=True))
    assert few.since == 3.0 == many.since and many.reading_s == 100 * few.reading_s > 0 and last_output_at == 12.0
    [unseen], _ = wait(whole, short)
    assert unseen.since == 2.0 and unseen.reading_s == 60.0 + few.reading_s
