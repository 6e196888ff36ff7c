"""The engine beside an event loop: events arrive in the loop's thread, the loop is not delayed, and a fault blocks no call."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from hangup.engine.options import EngineOptions
from hangup.engine.request import Event, GenerationEnded, Progress, SubmittedRequest
from hangup.engine.runner import EngineRunner


def ask(runner: EngineRunner, on_event: object, tokens: int = 900) -> object:
    return runner.submit(SubmittedRequest(prompt=(65, 66, 67), tokens_max=tokens, ignore_eos=True), on_event)  # type: ignore[arg-type]


async def _with_runner(use: object) -> None:
    runner = EngineRunner(EngineOptions(slots=4, spec="mtp"), asyncio.get_running_loop())
    runner.start()
    try:
        await use(runner)  # type: ignore[operator]
    finally:
        runner.stop()
        assert not runner.alive


@pytest.mark.alone
def test_events_come_in_the_loops_thread_and_the_loop_is_not_held_up() -> None:
    async def use(runner: EngineRunner) -> None:
        done, threads, lags = asyncio.Event(), set(), []
        calls = 8

        def on_event(event: Event) -> None:
            nonlocal calls
            threads.add(threading.current_thread())
            if isinstance(event, GenerationEnded):
                calls -= 1
                if calls == 0:
                    done.set()

        for _ in range(calls):
            ask(runner, on_event, 300)
        while not done.is_set():
            before = time.perf_counter()
            await asyncio.sleep(0)
            lags.append(time.perf_counter() - before)
            await asyncio.sleep(0.001)
        assert threads == {threading.main_thread()}
        lags.sort()
        assert lags[len(lags) * 9 // 10] < 0.5, "the loop turns while the engine computes"

    asyncio.run(_with_runner(use))


def test_a_cancel_from_another_thread_is_answered_with_the_end() -> None:
    async def use(runner: EngineRunner) -> None:
        moved, ended = asyncio.Event(), asyncio.Event()
        reasons: list[str] = []

        def on_event(event: Event) -> None:
            if isinstance(event, Progress):
                moved.set()
            elif isinstance(event, GenerationEnded):
                reasons.append(event.reason)
                ended.set()

        ticket = ask(runner, on_event)
        await asyncio.wait_for(moved.wait(), 60)
        await asyncio.to_thread(ticket.cancel)  # type: ignore[attr-defined]
        await asyncio.wait_for(ended.wait(), 60)
        assert reasons == ["cancelled"]
        assert runner.counters()["running"] == 0 and not any(row["is_processing"] for row in runner.status())

    asyncio.run(_with_runner(use))


def test_a_model_that_fails_ends_its_calls_and_serves_the_next() -> None:
    async def use(runner: EngineRunner) -> None:
        forward = runner._engine.model.forward

        def broken(batch: object) -> object:
            runner._engine.model.forward = forward  # type: ignore[method-assign]
            raise RuntimeError("out of memory")

        runner._engine.model.forward = broken  # type: ignore[method-assign,assignment]
        loop = asyncio.get_running_loop()
        for expected in ("failed", "length"):
            end: asyncio.Future[str] = loop.create_future()
            ask(runner, lambda event, end=end: end.set_result(event.reason) if isinstance(event, GenerationEnded) else None, 5)
            assert await asyncio.wait_for(end, 60) == expected
        assert runner.counters()["failed"] == 1 and runner.alive

    asyncio.run(_with_runner(use))


def test_a_thousand_random_cancels() -> None:
    """While the engine runs freely, each cancelled call is released with at most one forward begun after its cancel."""
    from bench.embedded import cancels, make

    result = cancels(make(EngineOptions(slots=8, spec="mtp")), 1000, prompt=16, tokens=900, wait_s=0.001)
    assert result["forwards_max"] <= 1


def test_two_slots_mtp_a_disconnect_and_one_who_waits() -> None:
    """Reproduces, a few hundred times, the fault that this engine must not have."""
    from bench.embedded import make, next_in_line

    result = next_in_line(make(EngineOptions(slots=2, spec="mtp", draft_tokens_max=2)), 300)
    assert result["next_started_in_that_turn"] == result["cancels"] == 300


def test_a_call_that_fails_to_take_its_event_costs_no_other_call_its_end() -> None:
    async def use(runner: EngineRunner) -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context.get("exception")))
        ends = [asyncio.Event() for _ in range(3)]

        def broken(event: Event) -> None:
            raise KeyError("a bug")

        for end in ends:  # started together, so that each step has events of both kinds
            ask(runner, broken, 20)
            ask(runner, lambda event, end=end: end.set() if isinstance(event, GenerationEnded) else None, 20)
        async with asyncio.timeout(60):
            for end in ends:
                await end.wait()
        assert errors and all(isinstance(error, KeyError) for error in errors)

    asyncio.run(_with_runner(use))


def test_a_submission_that_fails_takes_no_place() -> None:
    async def use(runner: EngineRunner) -> None:
        engine = runner._engine
        places = engine._options.slots + engine._options.waiting_max
        tokenizer = engine.model.tokenizer
        engine.model.tokenizer = None  # type: ignore[assignment]
        for _ in range(places + 1):
            with pytest.raises(AttributeError):
                ask(runner, print, 1)
        engine.model.tokenizer = tokenizer
        assert engine.counters.submitted == 0
        ended = asyncio.Event()
        ask(runner, lambda event: ended.set() if isinstance(event, GenerationEnded) else None, 1)
        async with asyncio.timeout(60):
            await ended.wait()

    asyncio.run(_with_runner(use))
