"""How long the event loop stood still, by its beats."""

from __future__ import annotations

import pytest

from hangup.gateway.backends.loop_beats import LoopBeats


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_loop_that_beats_never_stood_still(clock: list[float]) -> None:
    beats = LoopBeats()
    assert beats.stood_still_s() == 0.0, "without beats nothing is known"
    for _ in range(20):
        beats.beat()
        clock[0] += 0.1
    assert beats.stood_still_s() == 0.0


def test_a_standstill_counts_once_before_and_after_the_next_beat(clock: list[float]) -> None:
    beats = LoopBeats()
    beats.beat()
    clock[0] += 8.0
    assert beats.stood_still_s() == 8.0, "whoever runs first after it knows of it"
    beats.beat()
    assert beats.stood_still_s() == 8.0
    clock[0] += 0.1
    beats.beat()
    clock[0] += 2.0
    assert beats.stood_still_s() == 10.0
