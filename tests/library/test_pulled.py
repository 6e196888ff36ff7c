"""Answers that the framework fetches itself (Django, Quart): a body always ends, also for a client that paused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import hangup
from hangup.library.limits import Limits
from hangup.library.pulled import PulledAnswer, pull
from hangup.library.stream import StreamCall
from hangup.library.watch import ClientWatch


async def numbers() -> AsyncIterator[str]:
    for number in range(5):
        yield f"data: {number}\n\n"


async def slow_reader(ended: list[hangup.Ended], **limits: Any) -> list[bytes]:
    """Read a part, wait until the call is over, and read on; return all parts, and raise the error that ends the body."""
    over = asyncio.Event()

    def on_end(end: hangup.Ended) -> None:
        ended.append(end)
        over.set()

    _, _, answer = await pull(StreamCall(numbers(), Limits(**limits), on_end=on_end), ClientWatch(None, None, None))
    parts = [await anext(answer)]
    await asyncio.wait_for(over.wait(), 60)
    await read(answer, parts)
    return parts


async def read(answer: PulledAnswer, parts: list[bytes]) -> None:
    async with asyncio.timeout(60):
        try:
            while True:
                parts.append(await anext(answer))
        except StopAsyncIteration:
            pass
        except ConnectionResetError:
            parts.append(b"broken off")


def test_the_error_event_waits_behind_the_part_that_is_not_taken_yet() -> None:
    ended: list[hangup.Ended] = []
    first, second, error, end = asyncio.run(slow_reader(ended, total_s=0.5, grace_s=30), debug=True)
    assert (first, second, end, ended[0].cause) == (b"data: 0\n\n", b"data: 1\n\n", b"broken off", "total_s")
    assert "error" in json.loads(error.partition(b"data: ")[2])


def test_a_client_that_reads_on_after_it_counted_as_gone_gets_no_complete_answer() -> None:
    ended: list[hangup.Ended] = []
    parts = asyncio.run(slow_reader(ended, write_stall_s=0.5), debug=True)
    assert (parts, ended[0].cause) == ([b"data: 0\n\n", b"data: 1\n\n", b"broken off"], "write_stall")


def test_nor_does_one_that_reads_on_while_the_engine_is_being_stopped() -> None:
    async def main() -> list[bytes]:
        stopping, stopped = asyncio.Event(), asyncio.Event()

        async def slow_to_stop() -> AsyncIterator[str]:
            try:
                for number in range(5):
                    yield f"data: {number}\n\n"
            finally:
                stopping.set()
                await stopped.wait()

        _, _, answer = await pull(StreamCall(slow_to_stop(), Limits(write_stall_s=0.1)), ClientWatch(None, None, None))
        parts = [await anext(answer)]
        await asyncio.wait_for(stopping.wait(), 60)
        parts.append(await anext(answer))
        stopped.set()
        await read(answer, parts)
        return parts

    assert asyncio.run(main(), debug=True) == [b"data: 0\n\n", b"data: 1\n\n", b"broken off"]


def test_an_error_that_is_not_taken_within_the_grace_still_arrives() -> None:
    async def fails() -> AsyncIterator[str]:
        raise hangup.UpstreamError(429, {}, b"slow down")
        yield ""

    async def main() -> list[bytes]:
        call = StreamCall(fails(), Limits(grace_s=0.05))
        status, _, answer = await pull(call, ClientWatch(None, None, None))
        assert status == 429
        await asyncio.wait({answer._task}, timeout=60)  # the grace has passed
        parts: list[bytes] = []
        await read(answer, parts)
        return parts

    assert asyncio.run(main(), debug=True)[0] == b"slow down"


def test_the_reader_gets_the_error_of_a_call_that_failed_after_its_head() -> None:
    def on_cap() -> str:
        raise ZeroDivisionError

    async def main() -> None:
        call = StreamCall(numbers(), Limits(max_tokens=2), on_cap=on_cap)
        _, _, answer = await pull(call, ClientWatch(None, None, None))
        await read(answer, [])

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main(), debug=True)


def test_quart_reads_on_for_a_client_that_left_without_an_error_in_the_servers_log() -> None:
    """It does not know yet that the client left. The answer must not look complete for a client that reads on after all."""
    quart = pytest.importorskip("quart")
    app = quart.Quart(__name__)
    over, messages = asyncio.Event(), list[dict[str, Any]]()
    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def answer() -> Any:
        return await hangup.stream(quart.request, numbers(), write_stall_s=0.1, on_end=lambda _: over.set())

    app.add_url_rule("/", view_func=answer)

    async def receive() -> dict[str, Any]:
        if not requests:
            await asyncio.Event().wait()
        return requests.pop()

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)
        if message.get("body"):
            await asyncio.wait_for(over.wait(), 60)

    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
    }
    scope |= {"headers": [(b"host", b"test")], "scheme": "http", "root_path": "", "client": ("127.0.0.1", 1), "asgi": {}}
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 60), debug=True)
    assert messages[1]["body"] == b"data: 0\n\n" and all(message.get("more_body", True) for message in messages)
