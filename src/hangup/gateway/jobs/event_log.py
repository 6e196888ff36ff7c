"""A job's events while it runs: numbered and kept, so that who lost the connection can go on where they were."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import orjson


class JobEvent(NamedTuple):
    number: int
    name: str
    data: bytes


class EventLog:
    """Of more than `bytes_max` the oldest are forgotten: whoever keeps up hears all of it, to the last event."""

    def __init__(self, bytes_max: int) -> None:
        self._next = 0
        self._bytes_max = bytes_max
        self._bytes = 0
        self._events: list[JobEvent] = []
        self._first = 0  # of them, those before are forgotten,
        self._cut = 0  # and so many more were before those
        self.forgotten = -1  # number of the last event that was forgotten
        self.closed = False
        self._changed = asyncio.Event()

    @property
    def next_number(self) -> int:
        return self._next

    @property
    def events(self) -> list[JobEvent]:
        return self._events[self._first :]

    def add(self, name: str, data: bytes) -> None:
        self._events.append(JobEvent(self._next, name, data))
        self._next += 1
        self._bytes += len(data)
        while self._bytes > self._bytes_max and self._first < len(self._events) - 1:
            oldest = self._events[self._first]
            self._bytes -= len(oldest.data)
            self.forgotten = oldest.number
            self._first += 1
        if self._first > len(self._events) // 2:
            del self._events[: self._first]
            self._cut += self._first
            self._first = 0
        self._wake()

    def skip_to(self, number: int) -> None:
        self._next = max(self._next, number)

    def close(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def more(self, at: int) -> tuple[list[JobEvent], int]:
        """The events from place `at` on, once there are any, and the place behind them; none when there will be no more."""
        while self._cut + len(self._events) <= at and not self.closed:
            await self._changed.wait()
        return self._events[max(at - self._cut, self._first) :], self._cut + len(self._events)

    # On the disk

    def dump(self) -> bytes:
        return orjson.dumps([[e.number, e.name, e.data.decode("utf-8", "replace")] for e in self.events])

    @staticmethod
    def load(dumped: bytes) -> list[JobEvent]:
        return [JobEvent(number, name, data.encode()) for number, name, data in orjson.loads(dumped)]
