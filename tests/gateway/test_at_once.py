"""Connections to an engine on this host: the request goes out in the turn in which it came, and nothing is lost by that."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from hangup.config import BackendSettings, LimitSettings
from hangup.errors import EngineFault, OutOfResources, WireError
from hangup.gateway.backends import at_once
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.backends.pool import Pool
from hangup.gateway.http.head import ResponseHead
from support.waiting import PATIENCE_S, soon

REQUEST = b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


class Caller:
    """Receives the answer."""

    def __init__(self) -> None:
        self.body = b""
        self.answered = self.lost = False

    def engine_answered(self, connection: EngineConnection, head: ResponseHead, rest: bytes) -> Callable[[bytes], None]:
        self.answered = True
        self.take(rest)
        return self.take

    def take(self, data: bytes) -> None:
        self.body += data

    def engine_leaving(self) -> None: ...

    def engine_lost(self, connection: EngineConnection, error: Exception | None) -> None:
        self.lost = True

    def engine_garbled(self, connection: EngineConnection, error: WireError) -> None:
        raise error

    def fault(self, error: Exception) -> None:
        raise error


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    def run_in_loop(main: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await main()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(whole())

    return run_in_loop


Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture
def engine() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        yield listener


async def pool_of(engine: socket.socket, host: str = "127.0.0.1") -> Pool:
    """Return a pool that has reached the engine once, as the first health check does."""
    url = f"http://{host}:{engine.getsockname()[1]}"
    pool = Pool(BackendSettings(url=url), LimitSettings(), asyncio.get_running_loop())
    assert pool.connect_at_once() is None, "it is not yet known where the engine is"
    connection = await pool.connect()
    engine.accept()[0].close()
    connection.abort()
    await soon(lambda: not pool.open)
    return pool


def opened(pool: Pool) -> EngineConnection:
    connection = pool.connect_at_once()
    assert connection is not None
    return connection


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class TestRequest:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_goes_out_in_the_same_turn(self, run: Run, engine: socket.socket, host: str) -> None:
        async def main() -> None:
            pool, caller = await pool_of(engine, host), Caller()
            opened(pool).ask(caller, REQUEST, b"{}")
            sock, _ = engine.accept()  # blocks the event loop: nothing but what was done already can help
            with sock:
                sock.settimeout(PATIENCE_S)
                assert sock.recv(100) == REQUEST + b"{}"
                sock.sendall(ANSWER + b"okay")
                await soon(lambda: caller.body == b"okay")
            await soon(lambda: caller.lost and not pool.open)

        run(main)

    def test_arrives_whole_if_the_kernel_takes_only_a_part_at_once(self, run: Run, engine: socket.socket) -> None:
        async def main() -> None:
            pool, caller, body = await pool_of(engine), Caller(), os.urandom(20_000_000)
            received = bytearray()

            def serve() -> None:
                sock, _ = engine.accept()
                with sock:
                    while len(received) < len(REQUEST) + len(body):
                        received.extend(sock.recv(1 << 20))
                    sock.sendall(ANSWER + b"okay")

            thread = threading.Thread(target=serve, daemon=True)
            connection = opened(pool)
            connection.ask(caller, REQUEST, body)
            assert connection.transport.get_write_buffer_size() > 0
            thread.start()
            await soon(lambda: caller.body == b"okay")
            assert received == REQUEST + body
            thread.join(PATIENCE_S)
            await soon(lambda: not pool.open)

        run(main)


class TestEnd:
    @pytest.mark.parametrize("turns", range(6))
    def test_the_engine_learns_of_it_in_the_same_turn(self, run: Run, engine: socket.socket, turns: int) -> None:
        """Whatever the event loop has done with the socket by then; and the descriptor is closed, once."""

        async def main() -> None:
            pool = await pool_of(engine)
            before = descriptors()
            connection = opened(pool)
            connection.ask(Caller(), REQUEST, b"{}")
            sock, _ = engine.accept()
            with sock:
                sock.settimeout(PATIENCE_S)
                assert sock.recv(100)
                for _ in range(turns):
                    await asyncio.sleep(0)
                connection.abort()
                if isinstance(connection.transport, at_once.OpeningTransport):
                    assert sock.recv(100) == b""
                await soon(lambda: not pool.open)
                assert sock.recv(100) == b""
            assert descriptors() == before

        run(main)

    def test_of_the_pool(self, run: Run, engine: socket.socket) -> None:
        async def main() -> None:
            pool = await pool_of(engine)
            before = descriptors()
            connections = [opened(pool) for _ in range(3)]
            assert pool.open == set(connections)
            pool.close()
            await soon(lambda: not pool.open)
            assert descriptors() == before

        run(main)

    def test_by_the_engine_is_a_loss(self, run: Run, engine: socket.socket) -> None:
        async def main() -> None:
            pool, caller = await pool_of(engine), Caller()
            opened(pool).ask(caller, REQUEST, b"{}")
            engine.accept()[0].close()
            await soon(lambda: caller.lost and not pool.open)
            assert not caller.answered

        run(main)

    def test_by_the_event_loop_is_a_loss(self, run: Run, engine: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
        class Failing:
            async def create_connection(self, *_: object, **__: object) -> None:
                raise OSError("it cannot take the socket")

            def call_soon(self, callback: Callable[..., object], *args: object) -> object:
                return asyncio.get_running_loop().call_soon(callback, *args)

        async def main() -> None:
            pool, caller = await pool_of(engine), Caller()
            before = descriptors()
            monkeypatch.setattr(pool, "_loop", Failing())
            opened(pool).ask(caller, REQUEST, b"{}")
            await soon(lambda: caller.lost and not pool.open)
            assert descriptors() == before

        run(main)


def test_a_pause_before_the_loop_has_the_socket_holds(run: Run, engine: socket.socket) -> None:
    async def main() -> None:
        pool, caller = await pool_of(engine), Caller()
        connection = opened(pool)
        connection.ask(caller, REQUEST, b"{}")
        connection.pause()
        sock, _ = engine.accept()
        with sock:
            await soon(lambda: not isinstance(connection.transport, at_once.OpeningTransport))
            await asyncio.sleep(0)
            await soon(lambda: not connection.transport.is_reading())
            sock.sendall(ANSWER + b"okay")
            other = opened(pool)  # its answer comes later, and is read before
            second = Caller()
            other.ask(second, REQUEST, b"{}")
            with engine.accept()[0] as sock_2:
                sock_2.sendall(ANSWER + b"fine")
                await soon(lambda: second.body == b"fine")
                assert not caller.answered
                connection.resume()
                await soon(lambda: caller.body == b"okay")
        await soon(lambda: not pool.open)

    run(main)


class TestNotAtOnce:
    def test_if_nobody_listens(self, run: Run, engine: socket.socket) -> None:
        async def main() -> None:
            pool = await pool_of(engine)
            address = engine.getsockname()
            engine.close()
            before = descriptors()
            assert pool.connect_at_once() is None
            assert (descriptors(), len(pool.open)) == (before, 0)
            with pytest.raises(EngineFault):
                await pool.connect()
            with socket.create_server(address):
                (await pool.connect()).abort()
                opened(pool).abort()
                await soon(lambda: not pool.open)

        run(main)

    def test_if_the_backlog_is_full(self, run: Run, engine: socket.socket) -> None:
        async def main() -> None:
            pool = await pool_of(engine)
            engine.listen(0)
            waiting = []
            while (sock := at_once.connect(engine.getsockname())) is not None:
                waiting.append(sock)
            assert pool.connect_at_once() is None
            for sock in waiting:
                sock.close()

        run(main)

    def test_without_descriptors(self, run: Run, engine: socket.socket) -> None:
        async def main() -> None:
            pool = await pool_of(engine)
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
            try:
                assert pool.connect_at_once() is None
                with pytest.raises(OutOfResources):
                    await pool.connect()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limit)

        run(main)

    @pytest.mark.parametrize(
        ("address", "near"),
        [
            (("127.0.0.1", 80), True),
            (("127.8.0.1", 80), True),
            (("::1", 80, 0, 0), True),
            (("10.0.0.1", 80), False),
            (("fe80::1%eth0", 80, 0, 2), False),
            (None, False),
        ],
    )
    def test_on_another_host(self, address: at_once.SocketAddress | None, near: bool) -> None:
        assert at_once.on_this_host(address) == (address if near else None)
