"""Long-running tasks keep running: a failed one is restarted, counted and shown."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from hangup import tasks as module
from hangup.gateway.loop_watch import LoopWatch
from hangup.tasks import LongTasks, Tasks
from support.waiting import wait_until


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", (0.01, 0.05))


def test_a_task_that_fails_is_started_again_and_told_of() -> None:
    async def run() -> None:
        failed: list[tuple[str, str]] = []
        duties = LongTasks(lambda name, error: failed.append((name, str(error))))
        turns, goes_on = 0, asyncio.Event()

        async def work() -> None:
            nonlocal turns
            turns += 1
            if turns < 4:
                raise ValueError(f"turn {turns}")
            goes_on.set()
            await asyncio.Event().wait()

        task = duties.keep("watch", work)
        await asyncio.wait_for(goes_on.wait(), 60)
        assert failed == [("watch", "turn 1"), ("watch", "turn 2"), ("watch", "turn 3")]
        (duty,) = duties
        assert (duty.running, duty.failures, duties.down()) == (1, 3, [])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (duty.running, duties.down()) == (0, [])

    asyncio.run(run())


def test_what_is_down_is_named() -> None:
    async def run() -> None:
        duties = LongTasks()

        async def work() -> None:
            raise ValueError

        module._PAUSE_S = (60.0, 60.0)
        task = duties.keep("health", work)
        while not duties.down():  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert duties.down() == ["health (failed 1 times, last: ValueError)"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_what_comes_to_its_end_is_not_started_again() -> None:
    async def run() -> None:
        duties, turns = LongTasks(), 0

        async def work() -> None:
            nonlocal turns
            turns += 1

        await asyncio.wait_for(duties.keep("results", work), 60)
        assert turns == 1 and duties.down() == []
        with pytest.raises(ValueError, match="once"):
            await duties.start("once", fail())
        await asyncio.sleep(0)
        assert {duty.name: duty.failures for duty in duties} == {"results": 0, "once": 1}

    async def fail() -> None:
        raise ValueError("once")

    asyncio.run(run())


def test_a_thread_that_fails_is_run_again() -> None:
    duties, turns, over = LongTasks(), [], threading.Event()

    def work() -> None:
        turns.append(1)
        if len(turns) < 3:
            raise OverflowError
        over.wait(60)

    thread = duties.thread("ledger", work)
    wait_until(lambda: len(turns) == 3)
    (duty,) = duties
    assert (duty.running, duty.failures, duty.error) == (1, 2, "OverflowError")
    over.set()
    thread.join(60)
    assert (duty.running, duties.down()) == (0, [])


class TestLoopWatch:
    def test_a_blocked_loop_is_told_with_its_stack(self) -> None:
        """loop_stall_s"""
        events: list[tuple[str, dict[str, Any]]] = []
        watch = LoopWatch(lambda event, **fields: events.append((event, fields)), 0.2)
        thread = threading.Thread(target=watch.run, daemon=True)
        thread.start()
        watch.beat()
        _somebody_blocks_it(lambda: bool(events))
        watch.beat()
        wait_until(lambda: len(events) >= 2)
        watch.close()
        thread.join(60)
        (event, fields), (end, ended) = events[:2]  # without more beats, it stalls again
        assert event == "loop_stalled"
        assert any("_somebody_blocks_it" in place for place in fields["where"])
        assert end == "loop_resumed" and ended["after_s"] > 0.2
        assert watch.stalls >= 1 and watch.longest_s > 0.2

    def test_a_loop_that_comes_round_is_left_alone(self) -> None:
        events: list[str] = []
        watch = LoopWatch(lambda event, **_: events.append(event), 5.0)
        thread = threading.Thread(target=watch.run, daemon=True)
        thread.start()
        watch.beat()
        watch.close()
        thread.join(60)
        assert not events and watch.stalls == 0


class TestStuckThreads:
    def test_they_are_named_and_logged_with_their_stack(self) -> None:
        tasks, events = LongTasks(), list[tuple[str, dict[str, Any]]]()
        tasks.stall_s = 0.2
        watch = LoopWatch(lambda event, **fields: events.append((event, fields)), 0.2, tasks)
        disk_works, idle, over = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            with tasks.working("store"):
                disk_works.wait(60)
            idle.set()
            over.wait(60)

        threads = [tasks.thread("store", work), threading.Thread(target=watch.run, daemon=True)]
        threads[1].start()
        wait_until(lambda: any(event == "thread_stuck" for event, _ in events), what="a thread that hangs")
        (named,) = tasks.down()
        assert named.startswith("store (stuck for ")
        (task,) = tasks
        assert task.busy_s > 0.2
        disk_works.set()
        assert idle.wait(60)
        assert tasks.down() == [] and task.busy_s == 0.0, "a thread that waits for work is not stuck"
        wait_until(lambda: any(event == "thread_resumed" for event, _ in events), what="its end")
        over.set()
        watch.close()
        for thread in threads:
            thread.join(60)
        about = [(event, fields) for event, fields in events if event.startswith("thread_")]
        assert [(event, fields["task"]) for event, fields in about] == [("thread_stuck", "store"), ("thread_resumed", "store")]
        assert any(place.endswith(" work") for place in about[0][1]["where"])


def _somebody_blocks_it(seen: Any) -> None:
    deadline = time.monotonic() + 60
    while not seen() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_tasks_of_one_owner_are_counted_told_of_and_ended_together() -> None:
    async def run() -> None:
        failed: list[str] = []
        duties = LongTasks(lambda name, error: failed.append(f"{name}: {error}"))
        tasks = Tasks("claims", handled=(KeyError,), long_tasks=duties)

        async def fail(error: Exception) -> None:
            raise error

        for error in (ValueError("odd"), KeyError("known to whoever waits")):
            with pytest.raises(type(error)):
                await tasks.start(fail(error))
        await asyncio.sleep(0)
        assert failed == ["claims: odd"]
        waiting = [tasks.start(asyncio.Event().wait()) for _ in range(3)]
        (duty,) = duties
        assert (duty.name, duty.running, duty.failures, len(tasks)) == ("claims", 3, 1, 3)
        await tasks.close()
        assert all(task.cancelled() for task in waiting)
        assert (duty.running, len(tasks), duties.down()) == (0, 0, [])

    asyncio.run(run())


def test_a_thread_that_runs_once_is_counted_and_told_of() -> None:
    failed: list[str] = []
    duties = LongTasks(lambda name, error: failed.append(f"{name}: {error}"))
    go = threading.Event()

    def work() -> None:
        go.wait(30)
        raise ValueError("odd")

    thread = duties.thread_once("engine", work)
    (duty,) = duties
    wait_until(lambda: duty.running == 1)
    go.set()
    thread.join(30)
    assert (failed, duty.running, duty.failures, duties.down()) == (["engine: odd"], 0, 1, [])


@pytest.mark.parametrize("thread", [False, True])
def test_a_failure_of_which_nobody_is_told_is_logged(thread: bool, caplog: pytest.LogCaptureFixture) -> None:
    duties = LongTasks()

    def fail() -> None:
        raise ValueError("odd")

    async def run() -> None:
        async def work() -> None:
            fail()

        await asyncio.gather(duties.start("engine", work()), return_exceptions=True)

    if thread:
        duties.thread_once("engine", fail).join(60)
    else:
        asyncio.run(run())
    (record,) = caplog.records
    assert record.getMessage() == "engine failed" and record.exc_info and str(record.exc_info[1]) == "odd"


def test_waiting_for_a_task_that_has_just_ended_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its callbacks are still to come, and from Python 3.12 on `gather` gives them no turn: the wait must end all the same."""
    gathered = 0
    gather = asyncio.gather

    async def at_once(*tasks: asyncio.Task[object], return_exceptions: bool) -> None:
        nonlocal gathered
        gathered += 1
        assert gathered < 10, "the event loop has no turn any more"
        if not all(task.done() for task in tasks):
            await gather(*tasks, return_exceptions=return_exceptions)

    async def nothing() -> None: ...

    async def run() -> None:
        tasks = Tasks("watch", long_tasks=LongTasks())
        task = tasks.start(nothing())
        while not task.done():  # noqa: ASYNC110 - exactly the turn in which it ends
            await asyncio.sleep(0)
        assert len(tasks) == 1, "its callback has not run"
        await tasks.wait()
        assert not len(tasks)

    monkeypatch.setattr(asyncio, "gather", at_once)
    asyncio.run(run())
