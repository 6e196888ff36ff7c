"""Questions of the admin port to other gateways, through their mail in the store.

Whoever can write to the store can ask them. So a gateway answers only what shows or ends calls, and drains a backend; it is not
configured this way.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from hangup.gateway.workers.asgi import ask_app
from hangup.tasks import Tasks

Answer = tuple[int, str]  # status and body of an answer of the admin API
_AGAIN_S = 1.0  # one that did not answer the last time is given no more than this
_ALLOWED = re.compile(
    r"GET /api/(calls|calls/[^/?]+|ids|overview|history|zombies|backends)(\?.*)?|DELETE /api/(calls|calls/[^/?]+)(\?.*)?"
    r"|(PUT|DELETE) /api/backends/[^?]+/drain|(GET|DELETE) /api/backends/[^?]+/orphans"
)
_REFUSED: Answer = (403, '{"error":"a gateway does not answer this to others"}')
_STARTING: Answer = (503, '{"error":"this gateway is starting"}')  # at once: others may be starting, too, and wait for it
_FAILED: Answer = (500, '{"error":"internal gateway error; see the gateway log"}')


class Questions:
    """Asks other gateways, and answers them."""

    def __init__(self, me: str, post: Callable[[str, dict[str, Any]], None]) -> None:
        self._me, self._post = me, post
        self.app: ASGIApp | None = None  # this gateway's own admin API
        self.others: list[str] = []  # all that share the state, as far as they are known here
        self.silent: set[str] = set()  # those of them that did not answer the last question
        self._asked = 0
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._answers = Tasks("admin answer")

    async def close(self) -> None:
        await self._answers.close()

    def know(self, names: list[str]) -> None:
        self.others = [name for name in names if name != self._me]
        self.silent &= set(self.others)

    async def ask_self(self, method: str, target: str) -> Answer:
        assert self.app is not None
        try:
            status, body = await ask_app(self.app, method, target)
        except Exception:  # the application has logged it
            return _FAILED
        return status, body.decode("utf-8", "replace")

    async def ask(self, name: str, method: str, target: str, within_s: float) -> Answer | None:
        """Ask another gateway; None if it does not answer in time."""
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._post(name, {"from": self._me, "ask": [number, method, target]})
        try:
            async with asyncio.timeout(min(within_s, _AGAIN_S) if name in self.silent else within_s):
                found = await answer
        except TimeoutError:
            self.silent.add(name)
            return None
        finally:
            del self._waiting[number]
        self.silent.discard(name)
        return found

    def receive(self, entry: dict[str, Any]) -> None:
        """Take a question of another gateway, or its answer to one of ours."""
        if "ask" in entry:
            self._answers.start(self._answer(entry["from"], *entry["ask"]))
        else:
            number, status, body = entry["answer"]
            waiting = self._waiting.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_result((status, body))

    async def _answer(self, asked_by: str, number: int, method: str, target: str) -> None:
        if self.app is None:
            status, body = _STARTING
        else:
            allowed = _ALLOWED.fullmatch(f"{method} {target}")
            status, body = await self.ask_self(method, target) if allowed else _REFUSED
        self._post(asked_by, {"from": self._me, "answer": [number, status, body]})
