"""A client in the same process."""

from __future__ import annotations

import asyncio
from typing import Any

import hangup
from hangup.library.limits import Limits
from hangup.library.stream import StreamCall
from hangup.library.watch import ClientWatch

SCOPE: dict[str, Any] = {"type": "http", "path": "/"}


class Pretender:
    """A client in the same process, whose departure the test decides: ASGI's `receive`, and the answer it got."""

    def __init__(self) -> None:
        self.disconnected = asyncio.Event()
        self.sent: list[bytes] = []
        self.status = 0
        self.headers: dict[str, str] = {}
        self.finished = False

    @property
    def request(self) -> tuple[dict[str, Any], Any]:
        return SCOPE, self.receive

    async def receive(self) -> dict[str, str]:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def start(self, status: int, headers: Any) -> None:
        self.status = status
        self.headers = dict(headers)

    async def write(self, data: bytes) -> None:
        self.sent.append(data)

    async def finish(self) -> None:
        self.finished = True

    async def break_off(self) -> None:
        pass

    async def abandon(self) -> None:
        pass

    def answers(self, error: Exception) -> bool:
        return False

    async def stream(self, source: Any, **limits: Any) -> hangup.Ended:
        options = {name: limits.pop(name) for name in list(limits) if name not in Limits.__slots__}
        call = StreamCall(source, Limits(**limits), **options)
        return await call.run(ClientWatch(self.receive, None, None), self)
