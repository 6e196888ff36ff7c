"""How fast an endpoint is, when its events do not come one by one."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from hangup.probe.connection import ProbeConnection
from hangup.probe.dialects import DIALECTS
from hangup.probe.meet import Speed, faster

EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("hangup.probe.connection.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def rate_of(clock: list[float], pieces: list[tuple[float, int]]) -> float:
    """Return the rate of an answer that came in pieces: seconds after the request, and events."""
    clock[0] = 100.0
    with socket.socket() as sock:
        call = ProbeConnection(DIALECTS["openai"], sock)
        call.data_received(HEAD)
        for at, events in pieces:
            clock[0] = 100.0 + at
            call.data_received(EVENT * events)
    return faster(Speed(0.1, 1e-3), call).rate


def test_events_one_by_one(clock: list[float]) -> None:
    assert rate_of(clock, [(1 + 0.01 * n, 1) for n in range(48)]) == pytest.approx(100)


def test_events_that_waited_before_the_first_was_read(clock: list[float]) -> None:
    """A probe that was held up for 0.4 s finds 40 of 48 events at once; the engine made 100 a second all the same."""
    assert rate_of(clock, [(1.4, 40), *((1.41 + 0.01 * n, 1) for n in range(8))]) == pytest.approx(100)


def test_an_answer_in_one_piece_has_no_rate_of_its_own(clock: list[float]) -> None:
    assert rate_of(clock, [(2.0, 48)]) == pytest.approx(24)
    assert rate_of(clock, [(1.9, 40), (2.0, 8)]) == pytest.approx(24)
