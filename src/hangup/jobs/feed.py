"""A job's events while it runs: numbered and kept, so that who lost the connection can go on where they were."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import orjson


class Event(NamedTuple):
    number: int
    name: str
    data: bytes


class Feed:
    def __init__(self, bytes_max: int) -> None:
        self._next = 0
        self._bytes_max = bytes_max
        self._bytes = 0
        self.events: list[Event] = []
        self.closed = False
        self._changed = asyncio.Event()

    @property
    def next_number(self) -> int:
        return self._next

    def add(self, name: str, data: bytes) -> None:
        """Beyond the cap nothing is kept; the result is whole all the same."""
        self._bytes += len(data)
        if self._bytes <= self._bytes_max:
            self.events.append(Event(self._next, name, data))
            self._wake()
        self._next += 1

    def skip_to(self, number: int) -> None:
        self._next = max(self._next, number)

    def close(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def more(self, seen: int) -> list[Event]:
        """The events behind the first `seen` kept ones, once there are any; none when there will be no more."""
        while len(self.events) <= seen and not self.closed:
            await self._changed.wait()
        return self.events[seen:]

    # On the disk

    def dump(self) -> bytes:
        return orjson.dumps([[e.number, e.name, e.data.decode("utf-8", "replace")] for e in self.events])

    @classmethod
    def load(cls, dumped: bytes) -> Feed:
        feed = cls(0)
        feed.events = [Event(number, name, data.encode()) for number, name, data in orjson.loads(dumped)]
        feed.closed = True
        return feed
