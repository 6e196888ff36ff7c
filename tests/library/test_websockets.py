"""Calls over WebSockets: however a client disconnects, its engine stops, and no message is lost meanwhile."""

# No postponed annotations: FastAPI and Litestar could not resolve those of handlers that are defined in functions.

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest

import hangup
from hangup.library import websockets
from hangup.library.limits import Limits
from hangup.library.watch import ClientWatch
from hangup.library.websockets import HeldMessages
from library.hosting import hosted
from library.pretender import Pretender
from library.raw_websocket import BINARY, RawWebSocket
from library.served import NO_HOLD, CountingEngine
from support.waiting import soon, wait_until

LEAVES: dict[str, Callable[[RawWebSocket], None]] = {
    "close": RawWebSocket.goodbye,
    "fin": RawWebSocket.fin,
    "rst": RawWebSocket.reset,
    "half_close": RawWebSocket.half_close,
}
WORKS = ["stream", "thread", "run", "thread_run"]
ENGINE = CountingEngine()
CHAT = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


async def one_turn(websocket: Any, asked: dict[str, Any], send: Callable[[str], Any]) -> None:
    """Serve one message, with hangup."""
    engine_options = asked["id"], asked.get("pace_s", 0.01), 0, asked.get("count", 1000)
    id = asked["id"]
    work = ENGINE.work(id)
    held = NO_HOLD if asked.get("count") else (1, 60.0)  # the second token takes this long; in a thread, until the abort

    def abort() -> None:
        work.aborted += 1
        ENGINE.aborted(id).set()

    options: dict[str, Any] = {"abort": abort, "on_end": lambda ended: work.ended.append(asdict(ended))}
    match asked["do"]:
        case "stream":
            await hangup.stream(websocket, ENGINE.tokens(*engine_options, held), **options)
        case "thread":
            await hangup.stream(websocket, ENGINE.blocking(*engine_options, held), **options)
        case "run":
            await hangup.run(websocket, ENGINE.whole(*engine_options, held), **options)
        case "thread_run":
            await hangup.run(websocket, lambda token: ENGINE.blocking_whole(token, *engine_options, held), **options)
        case "chat":
            await hangup.stream(websocket, chat(), max_tokens=asked.get("max_tokens"), **options)
        case "fail":
            await hangup.stream(websocket, failing(), **options)
        case "late":
            await hangup.run(websocket, asyncio.sleep(60), total_s=0.05, **options)
    await send(json.dumps({"over": id}))


async def chat() -> Any:
    yield "plain"
    for _ in range(3):
        yield {**CHAT, "choices": [{"index": 0, "delta": {"content": "word"}, "finish_reason": None}]}


async def failing() -> Any:
    yield "one"
    raise hangup.UpstreamError(429, {}, b'{"error":{"message":"slow down"}}')


@contextmanager
def fastapi_served() -> Iterator[str]:
    from fastapi import FastAPI, WebSocket, WebSocketDisconnect

    app = FastAPI()

    @app.websocket("/ws")
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            while True:
                await one_turn(websocket, json.loads(await websocket.receive_text()), websocket.send_text)
        except WebSocketDisconnect:
            pass

    with hosted(app, ws="websockets-sansio") as url:
        yield url


@contextmanager
def litestar_served() -> Iterator[str]:
    from litestar import Litestar, WebSocket, websocket
    from litestar.exceptions import WebSocketDisconnect

    @websocket("/ws")
    async def ws(socket: WebSocket) -> None:  # type: ignore[type-arg]
        await socket.accept()
        try:
            while True:
                await one_turn(socket, json.loads(await socket.receive_text()), socket.send_text)
        except WebSocketDisconnect:
            pass

    with hosted(Litestar([ws]), ws="wsproto") as url:
        yield url


@contextmanager
def aiohttp_served() -> Iterator[str]:
    from aiohttp import WSMsgType, web

    async def ws(request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        try:
            async for message in websocket:
                if message.type is WSMsgType.TEXT:
                    await one_turn(websocket, json.loads(message.data), websocket.send_str)
        except hangup.CallEnded:
            await websocket.close(code=1013)
        return websocket

    app = web.Application()
    app.add_routes([web.get("/ws", ws)])
    loop = asyncio.new_event_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    stop = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        await stop.wait()
        await runner.cleanup()

    def main() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        listener.close()


SERVED = {"fastapi": fastapi_served, "litestar": litestar_served, "aiohttp": aiohttp_served}


@pytest.fixture(scope="module", params=SERVED)
def framework(request: pytest.FixtureRequest) -> Iterator[tuple[str, tuple[str, int]]]:
    with SERVED[request.param]() as url:
        yield request.param, ("127.0.0.1", int(url.rpartition(":")[2]))


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("work", WORKS)
def test_at_most_one_token_after_the_client_left(framework: tuple[str, tuple[str, int]], work: str, leave: str) -> None:
    name, address = framework
    id = f"{name}-{work}-{leave}"
    client = RawWebSocket(address, "/ws")
    client.say(do=work, id=id)
    wait_until(lambda: ENGINE.work(id).computed == 1, what="the first token")
    LEAVES[leave](client)
    counted = wait_until(lambda: (w := ENGINE.work(id)).ended and not w.running and w, what="the end of the call")
    client.sock.close()
    assert counted and counted.computed <= (2 if work.startswith("thread") else 1) and counted.aborted == 1
    assert counted.ended[0]["outcome"] == "client_gone" and not counted.ended[0]["zombie"]


def test_messages_that_come_meanwhile_are_kept_in_order(framework: tuple[str, tuple[str, int]]) -> None:
    name, address = framework
    with RawWebSocket(address, "/ws") as client:
        for number in range(3):
            client.say(do="run", id=f"{name}-turn-{number}", pace_s=0.05, count=2)
        assert [client.read_json() for _ in range(3)] == [{"over": f"{name}-turn-{number}"} for number in range(3)]
        client.goodbye()


def test_chunks_are_messages_and_a_cut_says_so(framework: tuple[str, tuple[str, int]]) -> None:
    name, address = framework
    with RawWebSocket(address, "/ws") as client:
        client.say(do="chat", id=f"{name}-chat")
        assert client.read_frame() == (1, b"plain")
        assert [client.read_json()["choices"][0]["delta"] for _ in range(3)] == [{"content": "word"}] * 3
        assert client.read_json() == {"over": f"{name}-chat"}
        client.say(do="stream", id=f"{name}-bytes", count=1, pace_s=0)
        assert client.read_frame() == (BINARY, b"data: token\n\n")
        assert client.read_json() == {"over": f"{name}-bytes"}
        client.say(do="chat", id=f"{name}-cut", max_tokens=2)
        assert client.read_frame() == (1, b"plain")
        assert client.read_json()["choices"][0]["delta"] == {"content": "word"}
        assert client.read_json()["choices"][0]["finish_reason"] == "length"
        assert client.read_json() == {"over": f"{name}-cut"}
        client.goodbye()


def test_an_error_is_a_message_and_the_connection_stays(framework: tuple[str, tuple[str, int]]) -> None:
    name, address = framework
    with RawWebSocket(address, "/ws") as client:
        client.say(do="fail", id=f"{name}-fail")
        assert client.read_frame() == (1, b"one")
        assert client.read_json() == {"error": {"message": "slow down"}}
        assert client.read_json() == {"over": f"{name}-fail"}
        client.goodbye()


def test_a_run_past_its_time_closes_the_websocket(framework: tuple[str, tuple[str, int]]) -> None:
    name, address = framework
    with RawWebSocket(address, "/ws") as client:
        client.say(do="late", id=f"{name}-late")
        code, payload = client.read_frame()
        assert code == 8 and int.from_bytes(payload[:2]) == 1013


def test_a_client_that_leaves_during_a_write_is_no_failure_of_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    async def tokens() -> Any:
        yield "one"
        yield "two"

    async def send(data: bytes | str) -> None:
        raise RuntimeError('Cannot call "send" once a close message has been sent.')

    class Gone(Pretender):
        async def write(self, data: bytes) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    async def main() -> list[hangup.Ended]:
        call = websockets.MessageCall(tokens(), Limits())
        over_websocket = await call.run(ClientWatch(None, None, None), websockets.WebSocketClient(send))
        return [over_websocket, await Gone().stream(tokens())]

    caplog.set_level(logging.INFO, "hangup")
    over_websocket, over_http = asyncio.run(main())
    assert (over_websocket.outcome.value, over_http.outcome.value) == ("client_gone", "client_gone")
    assert "a close message has been sent" in over_websocket.detail and "Broken pipe" in over_http.detail
    ours = [record.levelno for record in caplog.records if record.name == "hangup"]
    assert ours == [logging.INFO] * 2, caplog.text


def test_plain_asgi_websockets_and_tethered_handlers_are_refused() -> None:
    with pytest.raises(TypeError, match="a WebSocket of plain ASGI"):
        hangup.stream(({"type": "websocket"}, lambda: None), chat())

    class WebSocket: ...

    with pytest.raises(TypeError, match="serves a WebSocket"):

        @hangup.tethered
        async def handler(ws: WebSocket) -> None: ...


def test_a_talkative_client_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit, messages wait in the server; all of them reach the application in order."""
    monkeypatch.setattr(websockets, "HELD_MESSAGES_MAX", 3)

    async def main() -> None:
        incoming: asyncio.Queue[int] = asyncio.Queue()
        for number in range(10):
            incoming.put_nowait(number)
        held = HeldMessages(incoming.get, lambda message: message == 9)
        watch = asyncio.create_task(held.until_closed())
        await soon(lambda: incoming.qsize() == 7)
        await asyncio.sleep(0.02)
        assert incoming.qsize() == 7, "no more than three are held"
        assert [await held.receive() for _ in range(10)] == list(range(10))
        assert await asyncio.wait_for(watch, 60) == {"type": "http.disconnect"}

    asyncio.run(main(), debug=True)


def test_application_and_watch_read_in_turns() -> None:
    async def main() -> None:
        incoming: asyncio.Queue[str] = asyncio.Queue()
        held = HeldMessages(incoming.get, lambda message: message == "close")
        reading = asyncio.create_task(held.receive())
        await asyncio.sleep(0)
        watch = asyncio.create_task(held.until_closed())
        incoming.put_nowait("a")
        assert await asyncio.wait_for(reading, 60) == "a"
        reading = asyncio.create_task(held.receive())  # now the watch reads, and hands it on
        incoming.put_nowait("b")
        assert await asyncio.wait_for(reading, 60) == "b"
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        incoming.put_nowait("c")
        assert await asyncio.wait_for(held.receive(), 60) == "c"
        with pytest.raises(TimeoutError):
            await held.receive(0.01)
        incoming.put_nowait("close")
        assert await held.receive() == "close"
        assert await asyncio.wait_for(held.until_closed(), 60) == {"type": "http.disconnect"}

    asyncio.run(main(), debug=True)
