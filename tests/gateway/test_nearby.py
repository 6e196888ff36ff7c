"""Connections to an engine on this machine are there at once, and what happens before their transport is there counts."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import uvloop

from hangup.config import BackendSettings, LimitSettings
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.backends.pool import Pool
from hangup.gateway.http.head import ResponseHead

REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Handler:
    def __init__(self) -> None:
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()

    def engine_answered(self, connection: EngineConnection, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        self.answer.set_result(head.status)
        return lambda data: None

    def engine_leaving(self) -> None:
        pass

    def engine_lost(self, connection: EngineConnection, error: Exception | None) -> None:
        self.lost.set()

    def engine_garbled(self, connection: EngineConnection, error: Exception) -> None:
        raise AssertionError(error)

    def fault(self, error: Exception) -> None:
        raise AssertionError(error)


class Engine:
    """Accepts connections, and answers when it is told to; or it `leaves` at once."""

    def __init__(self, *, leaves: bool) -> None:
        self._leaves = leaves
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self._leaves:
            writer.transport.abort()
        await self.accepted.put((reader, writer))

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def pool_of(url: str, **limits: Any) -> Pool:
    return Backend(BackendSettings(url=url, engine="openai"), LimitSettings(**limits), asyncio.get_running_loop()).pool


@asynccontextmanager
async def engine_and_pool(*, leaves: bool = False, **limits: Any) -> AsyncIterator[tuple[Engine, Pool]]:
    engine = Engine(leaves=leaves)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    pool = pool_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", **limits)
    try:
        yield engine, pool
    finally:
        pool.close()
        server.close()
        await engine.close()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 30))


async def closed(pool: Pool) -> None:
    """Wait until the pool has no connection any more."""
    for _ in range(1000):
        if not pool.open:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("still open")


async def turns() -> None:
    """Let the event loop do what it has to do."""
    for _ in range(20):
        await asyncio.sleep(0)


@contextmanager
def without_descriptors() -> Iterator[None]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_a_request_is_sent_before_the_transport_is_there() -> None:
    async def main() -> None:
        async with engine_and_pool(engine_receive_bytes_max=65536) as (engine, pool):
            connection = pool.connect_now()
            assert connection is not None and connection in pool.open
            handler = Handler()
            connection.ask(handler, REQUEST, b"body")
            assert not connection.transport.is_closing() and connection.transport.get_write_buffer_size() > 0
            reader, writer = await engine.accepted.get()
            assert await reader.readexactly(len(REQUEST) + 4) == REQUEST + b"body"
            writer.write(ANSWER)
            assert await handler.answer == 200
            sock = connection.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 65536  # the kernel doubles it
            connection.release(reusable=True)
            assert pool.idle_connection() is connection

    run(main)


def test_a_connection_that_is_cut_before_its_transport_is_there_is_cut() -> None:
    async def main() -> None:
        async with engine_and_pool() as (engine, pool):
            connection = pool.connect_now()
            assert connection is not None
            connection.ask(Handler(), REQUEST, b"")
            connection.abort()
            assert connection.transport.is_closing()
            await closed(pool)
            # Whether the engine still gets to see a connection that was reset at once, the kernel decides.
            await turns()
            while not engine.accepted.empty():
                reader, _ = engine.accepted.get_nowait()
                with suppress(ConnectionResetError):
                    assert await reader.read() == b"", "nothing was sent"

    run(main)


def test_what_is_not_read_yet_stays_unread() -> None:
    async def main() -> None:
        async with engine_and_pool() as (engine, pool):
            connection = pool.connect_now()
            assert connection is not None
            handler = Handler()
            connection.ask(handler, REQUEST, b"")
            connection.pause()
            reader, writer = await engine.accepted.get()
            await reader.readexactly(len(REQUEST))
            writer.write(ANSWER)
            await writer.drain()
            await turns()
            assert not connection.is_quiet() and not handler.answer.done()
            connection.resume()
            assert await handler.answer == 200

    run(main)


def test_an_engine_that_leaves_at_once_is_lost() -> None:
    async def main() -> None:
        async with engine_and_pool(leaves=True) as (_, pool):
            connection = pool.connect_now()
            assert connection is not None
            handler = Handler()
            connection.ask(handler, REQUEST, b"")
            await handler.lost.wait()
            assert not pool.open

    run(main)


def test_connections_that_are_lost_at_once_close_no_other_descriptor() -> None:
    """uvloop would note only later that a descriptor is not the socket object's any more, and both would close it."""

    async def main() -> None:
        async with engine_and_pool(leaves=True) as (_, pool):
            for number in range(50):
                connection = pool.connect_now()
                assert connection is not None
                connection.ask(Handler(), REQUEST, b"")
                if number % 2:
                    connection.abort()
                del connection
                await closed(pool)
                with socket.socket() as newer:  # it gets the number of the descriptor that is free now
                    gc.collect()
                    assert newer.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM

    gc.freeze()  # what was there before takes half a second to go through, fifty times
    try:
        run(main)
    finally:
        gc.unfreeze()


def test_another_event_loop_makes_its_connections_itself() -> None:
    async def main() -> None:
        async with engine_and_pool() as (_, pool):
            assert pool.connect_now() is None
            (await pool.connect()).abort()

    asyncio.run(main())


def test_where_it_takes_time_or_fails_the_event_loop_does_it() -> None:
    async def main() -> None:
        with socket.socket() as deaf, socket.socket() as first:
            deaf.bind(("127.0.0.1", 0))
            at = f"http://127.0.0.1:{deaf.getsockname()[1]}"
            assert pool_of(at).connect_now() is None, "refused"
            deaf.listen(0)
            first.connect(deaf.getsockname())
            assert pool_of(at).connect_now() is None, "its queue is full"
            for elsewhere in (at.replace("127.0.0.1", "localhost"), at.replace("http:", "https:"), "http://192.0.2.1:9"):
                assert pool_of(elsewhere).connect_now() is None
        async with engine_and_pool() as (_, pool):
            with without_descriptors():
                assert pool.connect_now() is None
            assert not pool.open

    run(main)
