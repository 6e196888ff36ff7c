"""This gateway's mail in the store: what others send to it, and what it sends to others, within milliseconds.

What cannot be sent is dropped, and what the store loses is lost: the lines (`lines.py`) notice it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hangup.gateway.hosts.store import Letter, SharedStateFailed, Store
from hangup.tasks import TASKS

_PAUSE_S = 0.2  # before the store is asked again after a failure


class Mail:
    def __init__(self, store: Store, me: str, deliver: Callable[[dict[str, Any]], None], refused: Callable[[], None]) -> None:
        """`refused`: somebody else leads, so what this gateway sent as the leader was not delivered."""
        self._store, self._me = store, me
        self._deliver, self._refused = deliver, refused
        self._unsent: list[Letter] = []
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [TASKS.keep("mail out", self._send_for_ever), TASKS.keep("mail in", self._receive_for_ever)]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def post(self, to: str, entry: dict[str, Any], term: int | None = None) -> None:
        """Send to another gateway. `term`: only if this one still leads with it."""
        self._unsent.append(Letter(to, entry, term))
        self._wake.set()

    async def _send_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            letters, self._unsent = self._unsent, []
            try:
                for term in dict.fromkeys(letter.term for letter in letters):
                    if not await self._store.post(self._me, term, [letter for letter in letters if letter.term == term]):
                        self._refused()
            except SharedStateFailed:
                await asyncio.sleep(_PAUSE_S)
                self._unsent.clear()

    async def _receive_for_ever(self) -> None:
        while True:
            try:
                entries = await self._store.receive(self._me)
            except SharedStateFailed:
                await asyncio.sleep(_PAUSE_S)
                continue
            for entry in entries:
                self._deliver(entry)
