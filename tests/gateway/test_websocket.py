"""WebSockets (/v1/realtime): passed in both directions and counted as calls; a client that leaves is a hang-up like any
other."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import struct
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import aiohttp
import pytest

from support.processes import HANGUP, Gateway, get_json
from support.raw import Client
from support.waiting import wait_until
from support.websocket_engine import Session, WebSocketEngine, websocket_engine

Socket = aiohttp.ClientWebSocketResponse
KEY = "dGhlIHNhbXBsZSBub25jZQ=="


@pytest.fixture(scope="module")
def engine() -> Iterator[WebSocketEngine]:
    with websocket_engine() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(engine: WebSocketEngine) -> Iterator[Gateway]:
    with Gateway(engine.url, engine="openai") as process:
        yield process


def talk(url: str, conversation: Callable[[Socket], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0, **options) as socket:
            assert (await socket.receive_json(timeout=60))["type"] == "session.created"
            return await conversation(socket)

    return asyncio.run(asyncio.wait_for(run(), 60))


def frame(payload: bytes, opcode: int = 1) -> bytes:
    """Return a client's frame, masked as the RFC demands."""
    mask = b"\x01\x02\x03\x04"
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack("!H", len(payload))
    return bytes([0x80 | opcode]) + size + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def handshake(path: str = "/v1/realtime", headers: str = "", id: str = "") -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: a", "Connection: keep-alive, Upgrade", "Upgrade: WebSocket"]
    lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {KEY}"]
    return "\r\n".join([*lines, *([f"X-Request-Id: {id}"] if id else []), ""]).encode() + headers.encode() + b"\r\n"


def opened(gateway: Gateway, engine: WebSocketEngine, id: str) -> tuple[Client, Session]:
    before = len(engine.sessions)
    client = Client(gateway.address)
    client.send(handshake(id=id))
    status, headers = client.read_head()
    assert (status, headers["upgrade"], headers["x-request-id"]) == (101, "websocket", id)
    client.read_until(b"session.created")
    return client, wait_until(lambda: engine.sessions[before:])[0]


@contextlib.contextmanager
def conversing(engine: WebSocketEngine, id: str, **settings: Any) -> Iterator[tuple[Gateway, Client, Session]]:
    """Yield a gateway with these settings, and a client that has opened a WebSocket through it."""
    with Gateway(engine.url, engine="openai", **settings) as gateway:
        yield gateway, *opened(gateway, engine, id)


def places(gateway: Gateway) -> float:
    return sum(value for name, value in gateway.metrics().items() if name.startswith("hangup_backend_in_flight"))


class TestTalk:
    def test_a_conversation(self, gateway: Gateway, engine: WebSocketEngine) -> None:
        async def conversation(socket: Socket) -> tuple[list[str], bytes, int | None]:
            await socket.send_str("say 50")
            said = [(await socket.receive_str()) for _ in range(50)]
            blob = os.urandom(3_000_000)
            await socket.send_bytes(blob)
            same = (await socket.receive_bytes()) == blob
            await socket.close()
            return said, b"same" if same else b"", socket.close_code

        said, same, code = talk(f"{gateway.url}/v1/realtime?model=m", conversation, headers={"x-request-id": "talk"})
        assert (said, same, code) == ([f"message {number}" for number in range(50)], b"same", 1000)
        row = gateway.call_log("talk")
        assert (row["outcome"], row["status"], row["route"], row["stream"]) == ("completed", 101, "openai.realtime", True)
        assert row["bytes_in"] > 3_000_000
        wait_until(lambda: places(gateway) == 0)

    def test_the_engine_closes(self, gateway: Gateway, engine: WebSocketEngine) -> None:
        async def conversation(socket: Socket) -> tuple[aiohttp.WSMsgType, int | None]:
            await socket.send_str("close")
            return (await socket.receive()).type, socket.close_code

        headers = {"x-request-id": "engine-closes"}
        assert talk(f"{gateway.url}/v1/realtime", conversation, headers=headers) == (aiohttp.WSMsgType.CLOSE, 1000)
        assert gateway.call_log("engine-closes")["outcome"] == "completed"

    def test_subprotocol_and_compression_are_theirs(self, gateway: Gateway, engine: WebSocketEngine) -> None:
        async def conversation(socket: Socket) -> tuple[str | None, int, str]:
            await socket.send_str("x" * 10_000)
            return socket.protocol, socket.compress, await socket.receive_str()

        options: Any = {"protocols": ("realtime",), "compress": 15, "headers": {"x-custom": "yes"}}
        assert talk(f"{gateway.url}/v1/realtime", conversation, **options) == ("realtime", 15, "x" * 10_000)
        assert engine.sessions[-1].headers["x-custom"] == "yes"

    def test_refused_by_the_engine(self, gateway: Gateway) -> None:
        with Client(gateway.address) as client:
            client.send(handshake("/v1/realtime?refuse=1", id="refused"))
            answer = client.read_answer()
            assert (answer.status, answer.json()) == (404, {"error": "no such model"})
        assert gateway.call_log("refused")["status"] == 404

    def test_what_comes_with_the_handshake(self, gateway: Gateway) -> None:
        """Frames that arrive with the handshake are not lost: some clients do not wait."""
        with Client(gateway.address) as client:
            client.send(handshake() + frame(b"early"))
            client.read_until(b"early")

    def test_not_where_it_is_not_allowed(self, gateway: Gateway, engine: WebSocketEngine) -> None:
        before = len(engine.sessions)
        with Client(gateway.address) as client:
            client.send(handshake("/v1/models"))
            assert client.read_answer().status == 404  # the engine's own answer to a plain GET
            client.send(handshake("/other"))
            assert client.read_answer().json()["error"]["code"] == "not_found"
        assert len(engine.sessions) == before

    def test_a_route_of_the_configuration(self, engine: WebSocketEngine) -> None:
        config = f'[[backend]]\nurl = "{engine.url}"\n[[route]]\npath = "/other"\nwebsocket = true\n'
        with Gateway(config=config) as gateway, Client(gateway.address) as client:
            client.send(handshake("/other"))
            assert client.read_head()[0] == 101

    def test_a_plain_get_is_a_question(self, gateway: Gateway) -> None:
        with Client(gateway.address) as client:
            client.send(b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.read_answer().status == 400  # aiohttp's


class TestHangUps:
    @pytest.mark.parametrize("way", ["fin", "half_close", "reset"])
    def test_leaving(self, gateway: Gateway, engine: WebSocketEngine, way: str) -> None:
        client, session = opened(gateway, engine, f"leaves-{way}")
        with client:
            client.send(frame(b"hello"))
            client.read_until(b"hello")
            getattr(client, way)()
            wait_until(lambda: session.ended == "lost")
        assert gateway.call_log(f"leaves-{way}")["outcome"] == "client_gone"
        wait_until(lambda: places(gateway) == 0)

    def test_vanishing(self, engine: WebSocketEngine) -> None:
        with conversing(engine, "vanishes", client_silence_s=2) as (gateway, client, session):
            with client:
                client.vanish()
                wait_until(lambda: session.ended == "lost")
            assert gateway.call_log("vanishes")["cause"] == "silence"

    def test_a_close_that_the_engine_does_not_hear(self, engine: WebSocketEngine) -> None:
        with conversing(engine, "unheard", websocket_close_s=0.3) as (gateway, client, session):
            with client:
                client.send(frame(b"deaf"))
                wait_until(lambda: session.messages == ["deaf"])
                client.send(frame(struct.pack("!H", 1000), opcode=8))
                assert client.closed_within()
            assert gateway.call_log("unheard")["outcome"] == "client_gone"

    def test_behind_a_full_engine(self, engine: WebSocketEngine) -> None:
        """The engine does not read, so hangup stops reading from the client; it still notices that the client left."""
        with conversing(engine, "full", websocket_buffer_bytes_max=65536) as (gateway, client, session):
            with client:
                client.send(frame(b"deaf"))
                wait_until(lambda: session.messages == ["deaf"])
                client.sock.setblocking(False)
                sent, chunk = 0, frame(b"x" * 60_000, opcode=2)
                for _ in range(2000):
                    try:
                        sent += client.sock.send(chunk)
                    except BlockingIOError:
                        break
                else:
                    raise AssertionError("the client was never held back")
                client.sock.setblocking(True)
                client.reset()
            assert gateway.call_log("full")["outcome"] == "client_gone"
            wait_until(lambda: places(gateway) == 0)

    def test_the_engine_dies(self, gateway: Gateway, engine: WebSocketEngine) -> None:
        client, _ = opened(gateway, engine, "dies")
        with client:
            client.send(frame(b"die"))
            assert client.read_until(b"engine_died")[-15:-11] == b"\x88\x0d\x03\xf3"  # Close, 1011
            assert client.closed_within()
        assert gateway.call_log("dies")["outcome"] == "engine_failed"


class TestLimits:
    def test_it_takes_a_place(self, engine: WebSocketEngine) -> None:
        with Gateway(engine.url, engine="openai", slots=1, queue_depth_max=0) as gateway:
            client, _ = opened(gateway, engine, "first")
            with client, Client(gateway.address) as other:
                assert places(gateway) == 1
                other.send(handshake())
                answer = other.read_answer()
                assert (answer.status, answer.headers["x-hangup-reason"]) == (503, "queue_full")
                rows = get_json(f"{gateway.admin_url}/api/calls")["calls"]
                assert [(row["id"], row["route"]) for row in rows] == [("first", "openai.realtime")]

    def test_idle(self, engine: WebSocketEngine) -> None:
        with conversing(engine, "idle", websocket_idle_s=0.5) as (gateway, client, session):
            with client:
                client.read_until(b"websocket_idle_s")
                assert client.closed_within()
            row = gateway.call_log("idle")
            assert (row["outcome"], row["cause"]) == ("cap", "websocket_idle_s")
            wait_until(lambda: session.ended == "lost")

    def test_total(self, engine: WebSocketEngine) -> None:
        with conversing(engine, "total", websocket_s=1, total_s=0.2) as (gateway, client, _):
            with client:
                client.read_until(b"websocket_s")
            assert gateway.call_log("total")["cause"] == "websocket_s"

    def test_an_engine_that_stops_reading(self, engine: WebSocketEngine) -> None:
        with conversing(engine, "stuck", websocket_buffer_bytes_max=65536, write_stall_s=1) as (gateway, client, _):
            with client:
                client.send(frame(b"deaf"))
                client.sock.settimeout(60)
                with contextlib.suppress(ConnectionError):
                    for _ in range(10_000):
                        client.send(frame(b"x" * 60_000, opcode=2))
                    raise AssertionError("the client was never held back")
            assert gateway.call_log("stuck")["outcome"] == "engine_failed"

    def test_a_reader_that_stops(self, engine: WebSocketEngine) -> None:
        """Back-pressure reaches the engine, and a client that never reads is disconnected."""
        with conversing(engine, "stalled", write_stall_s=1) as (gateway, client, session):
            with client:
                client.send(frame(b"say 1000000"))
                wait_until(lambda: session.ended == "lost")
            assert gateway.call_log("stalled")["cause"] == "write_stall"


class TestOperators:
    def test_kill(self, gateway: Gateway, engine: WebSocketEngine) -> None:
        client, session = opened(gateway, engine, "killed")
        with client:
            done = subprocess.run(
                [*HANGUP, "kill", "--admin", gateway.admin_url, "killed"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            client.read_until(struct.pack("!H", 1008) + b"killed")
            assert client.closed_within()
        wait_until(lambda: session.ended == "lost")
        assert gateway.call_log("killed")["outcome"] == "killed"

    def test_drain(self, engine: WebSocketEngine) -> None:
        with conversing(engine, "drained", drain_s=0.5) as (gateway, client, session):
            with client:
                gateway.signal(signal.SIGTERM)
                client.read_until(struct.pack("!H", 1001) + b"drain_s")
                assert client.closed_within()
            assert gateway.wait() == 0
            wait_until(lambda: session.ended == "lost")
            assert next(row for row in gateway.log() if row.get("id") == "drained")["outcome"] == "drained"


class TestOrigins:
    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ("", 101),
            ("Origin: http://a\r\n", 101),
            ("Origin: http://a:8080\r\n", 403),
            ("Origin: https://page.example\r\n", 403),
            ("Origin: null\r\n", 403),
            ("Origin: https://page.example\r\nAuthorization: Bearer x\r\n", 101),
        ],
    )
    def test_pages_of_other_sites(self, gateway: Gateway, engine: WebSocketEngine, headers: str, status: int) -> None:
        before = len(engine.sessions)
        with Client(gateway.address) as client:
            client.send(handshake(headers=headers))
            assert client.read_head()[0] == status
        assert len(engine.sessions) == before + (status == 101)

    def test_allowed(self, engine: WebSocketEngine) -> None:
        with Gateway(engine.url, engine="openai", websocket_origins="https://page.example, https://b") as gateway:
            for origin, status in (("https://page.example", 101), ("https://other.example", 403)):
                with Client(gateway.address) as client:
                    client.send(handshake(headers=f"Origin: {origin}\r\n"))
                    assert client.read_head()[0] == status

    def test_keys(self, engine: WebSocketEngine) -> None:
        digest = hashlib.sha256(b"secret").hexdigest()
        config = f'[[backend]]\nurl = "{engine.url}"\n[[tenant]]\nname = "t"\nkey_sha256 = ["{digest}"]\n'
        with Gateway(config=config) as gateway:
            for key, status in (("wrong", 401), ("secret", 101)):
                with Client(gateway.address) as client:
                    client.send(handshake(headers=f"Authorization: Bearer {key}\r\n"))
                    assert client.read_head()[0] == status
            assert "authorization" not in engine.sessions[-1].headers
