"""How long the event loop stood still, and was kept from its work, by its beats."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from hangup.gateway.backends.loop_beats import LoopBeats, cpu_wait_s


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


def test_a_loop_that_beats_in_time_is_not_delayed(clock: list[float]) -> None:
    beats = LoopBeats(lambda: 3.0)
    assert beats.delayed_s(100.0) == 0.0, "without beats nothing is known"
    for _ in range(20):
        beats.beat()
        clock[0] += 0.1
    assert beats.delayed_s(100.0) == pytest.approx(0.0)


def test_a_long_turn_delays_before_and_after_the_next_beat(clock: list[float]) -> None:
    beats = LoopBeats(lambda: 3.0)
    beats.beat()
    clock[0] += 0.4
    assert beats.delayed_s(100.0) == pytest.approx(0.3), "a beat was due after 0.1 s"
    beats.beat()
    assert beats.delayed_s(100.0) == pytest.approx(0.3)
    assert beats.delayed_s(100.41) == 0.0, "what began after it was not delayed by it"


def test_waiting_for_a_cpu_delays(clock: list[float]) -> None:
    cpu_wait = [3.0]
    beats = LoopBeats(lambda: cpu_wait[0])
    beats.beat()
    for _ in range(5):
        clock[0] += 0.1
        cpu_wait[0] += 0.06
        beats.beat()
    clock[0] += 0.05
    cpu_wait[0] += 0.04
    assert beats.delayed_s(100.0) == pytest.approx(0.34)
    assert beats.delayed_s(100.45) == pytest.approx(0.10), "since the beat before, at 100.4"
    assert beats.delayed_s(10.0) == pytest.approx(0.34), "as far back as is known"
    beats.stop()
    assert beats.delayed_s(100.0) == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells it on Linux")
def test_the_kernel_tells_how_long_a_thread_waited_for_a_cpu() -> None:
    """Another process works on the same CPU, so each waits for the other."""
    allowed = os.sched_getaffinity(0)
    cpu = min(allowed)
    program = f"import os; os.sched_setaffinity(0, [{cpu}]); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline()
            os.sched_setaffinity(0, [cpu])
            before_s, until = cpu_wait_s(), time.thread_time() + 0.3
            while time.thread_time() < until:
                pass
            assert cpu_wait_s() - before_s > 0.05
        finally:
            os.sched_setaffinity(0, allowed)
            other.kill()
