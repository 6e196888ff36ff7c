"""Threads for blocking engines: they have their call's context, and their number is limited."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import hangup
from hangup.library import threads
from hangup.library.deadline import remaining_s
from hangup.library.run import run
from hangup.tasks import TASKS
from library.pretender import Pretender
from support.waiting import soon

trace: ContextVar[str] = ContextVar("trace", default="unset")


def test_a_thread_has_the_calls_context_and_deadline() -> None:
    def work(token: hangup.CancelToken) -> tuple[str, float | None]:
        return trace.get(), remaining_s()

    def chunks() -> Iterator[str]:
        yield trace.get()

    async def main() -> None:
        trace.set("of this call")
        name, seconds = await run(Pretender().request, work, total_s=70)
        assert name == "of this call" and seconds is not None and 40 < seconds <= 70
        client = Pretender()
        await client.stream(chunks())
        assert client.sent == [b"of this call"]

    asyncio.run(main())


@pytest.fixture
def two_threads() -> Iterator[None]:
    hangup.set_threads_max(2)
    yield
    hangup.set_threads_max(threads.THREADS_MAX)


@pytest.mark.usefixtures("two_threads")
def test_further_calls_wait_for_a_thread_and_may_leave(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    running = 0

    def work(token: hangup.CancelToken) -> str:
        nonlocal running
        running += 1
        release.wait(60)
        return "done"

    async def main() -> None:
        calls = [asyncio.create_task(run(Pretender().request, work)) for _ in range(3)]
        leaver = Pretender()
        ended: list[hangup.Ended] = []
        gone: Any = asyncio.create_task(leaver.stream(iter("abc"), on_end=ended.append))
        await soon(lambda: running == 2)
        await asyncio.sleep(0.05)
        assert running == 2, "the third waits"
        leaver.disconnected.set()
        assert (await asyncio.wait_for(gone, 60)).outcome.value == "client_gone"
        release.set()
        assert await asyncio.wait_for(asyncio.gather(*calls), 60) == ["done"] * 3

    caplog.set_level(logging.WARNING, "hangup")
    asyncio.run(main(), debug=True)
    assert running == 3 and "all 2 threads are busy" in caplog.text


@pytest.mark.usefixtures("two_threads")
def test_a_thread_that_does_not_stop_keeps_its_place_until_it_does() -> None:
    release = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            client = Pretender()

            def deaf(token: hangup.CancelToken, leave: Any = client.disconnected.set) -> None:
                loop.call_soon_threadsafe(leave)
                release.wait(60)

            with pytest.raises(hangup.CallEnded):
                await run(client.request, deaf, grace_s=0.05)
        waiting = asyncio.create_task(run(Pretender().request, lambda _: "at last"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        release.set()
        assert await asyncio.wait_for(waiting, 60) == "at last"

    asyncio.run(main())


@pytest.mark.usefixtures("two_threads")
def test_a_thread_that_cannot_start_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> str:
        with monkeypatch.context() as patch:
            patch.setattr(TASKS, "thread_once", refuse)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="can't start"):
                    await asyncio.wait_for(run(Pretender().request, lambda _: "never"), 60)
            assert (await asyncio.wait_for(Pretender().stream(iter("abc")), 60)).cause == "engine_error"
        return await asyncio.wait_for(run(Pretender().request, lambda _: "done"), 60)

    assert asyncio.run(main()) == "done"


def test_threads_must_be_some() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        hangup.set_threads_max(0)


MISTAKES = {
    "@hangup.tethered(tootal_s=3)": "unexpected keyword argument 'tootal_s'",
    "@hangup.tethered(total_s=-1)": "total_s must be above 0",
    "@hangup.tethered(total_s='3')": "total_s must be a number",
    "@hangup.tethered(60)": "60 is not async",
    "@hangup.tethered(total_s=float('nan'))": "total_s must be above 0",
    "@hangup.tethered(abort=3)": "abort must be a function, or None; got 3",
    "@hangup.tethered(on_end='log')": "on_end must be a function, or None; got 'log'",
    "hangup.Gate(slots='8')": "slots of a Gate must be a whole number; got '8'",
    "hangup.Gate(slots=8, max_wait_s='5')": "max_wait_s of a Gate must be a number; got '5'",
    "hangup.set_threads_max('8')": "threads must be 1 or more; got '8'",
}


@pytest.mark.parametrize("decorator", MISTAKES)
def test_a_wrong_argument_fails_at_import(decorator: str) -> None:
    code = f"import hangup\n{decorator}\nasync def handler(request): ..."
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and MISTAKES[decorator] in done.stderr, done.stderr
