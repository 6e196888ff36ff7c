"""The parts of the library on their own: tokens, threads, sources, tethers whose work does not stop, and the client side."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import inspect
import os
import select
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

import hangup
import hangup.httpx
from hangup.core.reasons import Reason
from hangup.library import sockets
from hangup.library.limits import Limits
from hangup.library.run import run
from hangup.library.sources import Opening, open_source
from hangup.library.stream import StreamCall
from hangup.library.tether import Tether
from hangup.library.watch import ClientWatch
from library.pretender import SCOPE, Pretender
from support.waiting import soon


def test_a_token_is_set_once_and_calls_back_once() -> None:
    token, called = hangup.CancelToken(), []
    token.on_cancel(lambda: called.append("before"))
    assert not token() and not token.cancelled
    token.check()
    token.cancel()
    token.cancel()
    token.on_cancel(lambda: called.append("after"))
    assert called == ["before", "after"] and token(1, scores=2)
    with pytest.raises(hangup.Cancelled):
        token.check()


async def three() -> AsyncIterator[str]:
    for letter in "abc":
        yield letter


class Manager:
    """Like an SDK's stream manager."""

    closed = False

    async def __aenter__(self) -> AsyncIterator[str]:
        return three()

    async def __aexit__(self, *_: object) -> None:
        self.closed = True


async def given() -> AsyncIterator[str]:
    return three()


@pytest.mark.parametrize(
    "make",
    [three, given, Manager, lambda: iter("abc"), lambda: lambda _: three(), lambda: lambda _: iter("abc")],
    ids=["async iterator", "awaitable", "context manager", "blocking iterator", "function", "blocking function"],
)
def test_every_kind_of_source_gives_its_chunks(make: Any) -> None:
    async def main() -> list[str]:
        async with open_source(make(), Opening(hangup.CancelToken())) as chunks:
            return [chunk async for chunk in chunks]

    assert asyncio.run(main(), debug=True) == ["a", "b", "c"]


def test_opening_a_blocking_stream_does_not_block_the_loop_and_is_cancelled_too() -> None:
    closed = threading.Event()

    class Slow:
        def __iter__(self) -> Iterator[bytes]:
            return iter([b"x"])

        def close(self) -> None:
            closed.set()

    def open_slowly(token: hangup.CancelToken) -> Slow:
        token.wait(60)  # an engine's prefill; a fake that notices, so that the test need not wait
        return Slow()

    async def main() -> hangup.Ended:
        client = Pretender()
        asyncio.get_running_loop().call_later(0.05, client.disconnected.set)
        return await client.stream(open_slowly)

    ended = asyncio.run(main(), debug=True)
    assert ended.outcome.value == "client_gone" and ended.tokens_out == 0 and not ended.zombie
    assert closed.is_set()


def test_other_things_are_refused_by_name() -> None:
    async def main() -> None:
        async with open_source(7, Opening(hangup.CancelToken())):
            pass

    with pytest.raises(TypeError, match="cannot stream from a int"):
        asyncio.run(main())


def test_an_error_in_the_engines_thread_reaches_the_call() -> None:
    def broken() -> Iterator[bytes]:
        yield b"one"
        raise RuntimeError("out of memory")

    async def main() -> hangup.Ended:
        return await Pretender().stream(broken())

    ended = asyncio.run(main(), debug=True)
    assert (ended.outcome.value, ended.cause, ended.tokens_out) == ("engine_failed", "engine_error", 1)
    assert "out of memory" in ended.detail


def test_a_stream_that_cannot_be_closed_does_not_keep_its_call(caplog: pytest.LogCaptureFixture) -> None:
    class Stream:
        """An SDK's stream whose connection is already gone."""

        def __iter__(self) -> Iterator[bytes]:
            return iter([b"one"])

        def close(self) -> None:
            raise OSError("already gone")

    async def main() -> hangup.Ended:
        return await asyncio.wait_for(Pretender().stream(Stream()), 60)

    ended = asyncio.run(main())
    assert (ended.outcome.value, ended.zombie, ended.tokens_out) == ("completed", "", 1)
    assert "closing the stream failed: OSError('already gone')" in caplog.text


def test_a_thread_that_does_not_answer_is_named_after_the_grace(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    async def main() -> None:
        client, loop = Pretender(), asyncio.get_running_loop()

        def deaf_engine(token: hangup.CancelToken) -> None:
            loop.call_soon_threadsafe(client.disconnected.set)  # the client leaves while this runs, however busy the machine is
            release.wait(60)

        try:
            await run(client.request, deaf_engine, grace_s=0.1)
        finally:
            release.set()

    with pytest.raises(hangup.CallEnded) as caught:
        asyncio.run(main())
    assert "deaf_engine" in caught.value.ended.zombie
    assert "did not stop within 0.1 s" in caplog.text


def test_a_stream_that_eats_its_cancellation_is_not_asked_again() -> None:
    computed = 0

    async def deaf() -> AsyncIterator[bytes]:
        nonlocal computed
        while computed < 50:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
            computed += 1
            yield b"x"

    async def main() -> hangup.Ended:
        client = Pretender()
        asyncio.get_running_loop().call_later(0.05, client.disconnected.set)
        return await client.stream(deaf())

    ended = asyncio.run(main())
    assert ended.outcome.value == "client_gone"
    assert computed <= ended.tokens_out + 1


def test_a_gap_ends_the_call_and_the_engine_is_closed() -> None:
    closed = False

    async def pausing() -> AsyncIterator[bytes]:
        nonlocal closed
        try:
            yield b"one"
            await asyncio.sleep(30)
        finally:
            closed = True

    client: list[Pretender] = []

    async def main() -> hangup.Ended:
        client.append(Pretender())
        return await client[0].stream(pausing(), gap_s=0.05)

    ended = asyncio.run(main(), debug=True)
    assert ended.cause == "gap_s" and closed
    assert b'"code":"gap_s"' in client[0].sent[-1] and not client[0].finished


def test_a_client_that_does_not_read_cannot_hold_up_the_end() -> None:
    class Stuck(Pretender):
        async def write(self, data: bytes) -> None:
            await asyncio.sleep(600)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x"

    async def main() -> hangup.Ended:
        return await asyncio.wait_for(Stuck().stream(endless(), total_s=0.05, grace_s=0.05), 60)

    assert asyncio.run(main(), debug=True).cause == "total_s"


def test_a_server_that_shuts_down_ends_the_call() -> None:
    closed = asyncio.Event()
    ended_calls: asyncio.Queue[hangup.Ended] = asyncio.Queue()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                await asyncio.sleep(0.01)
                yield b"x"
        finally:
            closed.set()

    async def main() -> None:
        call = StreamCall(endless(), Limits(), on_end=ended_calls.put_nowait)
        client = Pretender()
        task = asyncio.create_task(call.run(ClientWatch(client.receive, None, None), client))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(closed.wait(), 60)
        ended = await asyncio.wait_for(ended_calls.get(), 60)
        assert ended.outcome.value == "drained" and ended_calls.empty()

    asyncio.run(main(), debug=True)


def test_an_awaitable_abort_is_awaited() -> None:
    aborted: list[str] = []

    async def abort() -> None:
        await asyncio.sleep(0.01)
        aborted.append("yes")

    async def main() -> None:
        client = Pretender()
        asyncio.get_running_loop().call_later(0.02, client.disconnected.set)
        with pytest.raises(hangup.CallEnded):
            await run(client.request, asyncio.sleep(600), abort=abort)
        assert aborted == ["yes"]

    asyncio.run(main(), debug=True)


def test_errors_of_the_work_pass_through() -> None:
    async def fail() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError):
        asyncio.run(run((SCOPE, Pretender.receive), fail()))


def test_a_handler_without_async_is_refused() -> None:
    with pytest.raises(TypeError, match="is not async"):

        @hangup.tethered
        def handler(request: Any) -> None:
            pass


# The client side


def test_the_rest_of_the_deadline_is_sent_and_kept() -> None:
    seen: dict[str, Any] = {}

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.update(header=request.headers["x-request-timeout"], read=request.extensions["timeout"]["read"])
        return httpx.Response(200, text="ok")

    async def main() -> None:
        async with hangup.httpx.AsyncClient(transport=httpx.MockTransport(answer), timeout=60) as client:
            with hangup.deadline(50), hangup.deadline(100):
                assert (await client.get("http://engine/")).text == "ok"
            assert 20 < float(seen["header"]) <= 50 and seen["read"] <= 50
            with hangup.deadline(0.001):
                await asyncio.sleep(0.002)
                with pytest.raises(httpx.ReadTimeout):
                    await client.get("http://engine/")

    asyncio.run(main(), debug=True)


def test_a_tethered_call_passes_its_deadline_on() -> None:
    from hangup.library.deadline import remaining_s

    async def look() -> float | None:
        return remaining_s()

    async def main() -> float | None:
        return await run(Pretender().request, look(), total_s=70)

    seconds = asyncio.run(main())
    assert seconds is not None and 40 < seconds <= 70


class Body(httpx.AsyncByteStream):
    closed = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(100):
            await asyncio.sleep(0)
            yield b"chunk\n"

    async def aclose(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("way", ["break", "cancel", "drop", "end"])
def test_no_stream_is_left_half_read(way: str) -> None:
    body = Body()

    async def read(response: httpx.Response) -> None:
        async for _ in response.aiter_raw():
            if way == "break":
                return
            if way == "cancel":
                await asyncio.sleep(30)

    async def main() -> None:
        async def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, stream=body)

        async with hangup.httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            response: Any = await client.send(client.build_request("GET", "http://engine/"), stream=True)
            if way != "drop":
                task = asyncio.create_task(read(response))
                done, _ = await asyncio.wait({task}, timeout=0.05)
                if not done:
                    task.cancel()
                    await asyncio.wait({task})
                del task, done
            del response
            gc.collect()  # a response and its body hold each other
            await soon(lambda: body.closed, "the stream to be closed")

    asyncio.run(main())


def test_an_sdk_stream_closes_on_break() -> None:
    class Stream:
        closed = False

        def __aiter__(self) -> AsyncIterator[str]:
            return three()

        async def close(self) -> None:
            self.closed = True

    async def main() -> None:
        stream = Stream()
        async for _ in hangup.closing(stream):
            break
        await asyncio.sleep(0.01)
        assert stream.closed
        stream = Stream()
        async with hangup.closing(stream) as chunks:
            assert [chunk async for chunk in chunks] == ["a", "b", "c"]
        assert stream.closed

    asyncio.run(main(), debug=True)


def short_of_descriptors(*_: object) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.skipif(not sockets.SUPPORTED, reason="Linux only")
@pytest.mark.parametrize("what", ["dup", "epoll"])
def test_a_client_that_cannot_be_watched_is_not_a_client_that_left(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Without a free file descriptor, nothing is known about the client, and its work continues."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            gone: list[Reason] = []
            with monkeypatch.context() as patch:
                patch.setattr(os if what == "dup" else select, what, short_of_descriptors)
                watch = sockets.SocketWatch(ours.fileno(), None)
                watch.start(gone.append)
            assert gone == [] and watch.disconnect_reason() is None
            watch.stop()
            again = sockets.SocketWatch(ours.fileno(), None)  # as soon as there are descriptors, clients are watched
            again.start(gone.append)
            theirs.close()
            await soon(lambda: bool(gone))
            again.stop()
            assert [reason.code for reason in gone] == ["fin"]

    asyncio.run(main())


def test_a_socket_that_the_server_has_closed_is_a_client_that_left() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        descriptor = ours.fileno()
        ours.close()
        theirs.close()
        gone: list[Reason] = []
        sockets.SocketWatch(descriptor, None).start(gone.append)
        assert [reason.code for reason in gone] == ["fin"]

    if sockets.SUPPORTED:
        asyncio.run(main())


def test_work_whose_client_cannot_be_watched_does_not_run_on_alone() -> None:
    async def main() -> None:
        async def work() -> None:
            await asyncio.sleep(3600)

        class Broken(ClientWatch):
            def start(self, on_disconnect: Any) -> None:
                raise KeyError("a bug")

        tether = Tether(Limits(None, None, None, None, None, None, 1.0))
        running = work()
        with pytest.raises(KeyError):
            await tether.run(Broken(None, None, None), running)
        await soon(lambda: tether.ended is not None)
        assert inspect.getcoroutinestate(running) == inspect.CORO_CLOSED  # cancelled, begun or not

    asyncio.run(main())
