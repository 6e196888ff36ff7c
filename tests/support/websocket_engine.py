"""An engine that speaks WebSocket on /v1/realtime, built on aiohttp, an implementation that is not ours."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiohttp import WSCloseCode, WSMsgType, web

from support.waiting import PATIENCE_S


@dataclass
class Session:
    headers: dict[str, str]
    messages: list[str | bytes] = field(default_factory=list)
    ended: str = ""  # "close 1000", "lost": how the other side disconnected


class WebSocketEngine:
    """Echoes messages. On `say N` it sends N messages, on `close` it closes, on `die` it cuts, on `deaf` it stops reading."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.port = 0
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE_S)
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/realtime", self._realtime)
        app.router.add_get("/other", self._realtime)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _realtime(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("refuse"):
            return web.json_response({"error": "no such model"}, status=404)
        session = Session({name.lower(): value for name, value in request.headers.items()})
        self.sessions.append(session)
        socket = web.WebSocketResponse(protocols=("realtime",), timeout=2, max_msg_size=0, compress=True)
        await socket.prepare(request)
        await socket.send_json({"type": "session.created"})
        with contextlib.suppress(ConnectionError):
            await self._talk(request, socket, session)
        code = socket.close_code
        session.ended = "lost" if code in (None, WSCloseCode.ABNORMAL_CLOSURE) else f"close {int(code or 0)}"
        return socket

    async def _talk(self, request: web.Request, socket: web.WebSocketResponse, session: Session) -> None:
        async for message in socket:
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                continue
            session.messages.append(message.data)
            word = message.data if isinstance(message.data, str) else ""
            if word.startswith("say "):
                for number in range(int(word.split()[1])):
                    await socket.send_str(f"message {number}")
            elif word == "close":
                await socket.close(code=1000, message=b"done")
            elif word == "die":
                assert request.transport is not None
                request.transport.abort()
                return
            elif word == "deaf":
                await asyncio.sleep(600)
            elif isinstance(message.data, bytes):
                await socket.send_bytes(message.data)
            else:
                await socket.send_str(word)


@contextlib.contextmanager
def websocket_engine() -> Iterator[WebSocketEngine]:
    engine = WebSocketEngine()
    try:
        yield engine
    finally:
        engine.close()
