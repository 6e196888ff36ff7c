"""Numbers and keeps the events of a running job, so that a client that lost its connection can resume."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import orjson

_EVENT_BYTES = 150  # about what an event takes besides its name and its data


class JobEvent(NamedTuple):
    """A numbered event of a job."""

    number: int
    name: str
    data: bytes


def _size(name: str, data: bytes) -> int:
    """Return what an event takes in memory: an engine may send any number of empty ones."""
    return len(name) + len(data) + _EVENT_BYTES


class EventLog:
    """The events of one job. Beyond `bytes_max` it drops the oldest, so a client that keeps up still gets every event."""

    def __init__(self, bytes_max: int) -> None:
        self._next = 0
        self._bytes_max = bytes_max
        self._bytes = 0
        self._events: list[JobEvent] = []
        self._first = 0  # index in `_events` of the first event that is not dropped
        self._removed = 0  # number of events removed from the front of `_events`
        self.last_dropped = -1  # number of the last event that was dropped
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
        self._bytes += _size(name, data)
        while self._bytes > self._bytes_max and self._first < len(self._events) - 1:
            oldest = self._events[self._first]
            self._bytes -= _size(oldest.name, oldest.data)
            self.last_dropped = oldest.number
            self._first += 1
        if self._first > len(self._events) // 2:
            del self._events[: self._first]
            self._removed += self._first
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

    async def next_events(self, position: int) -> tuple[list[JobEvent], int]:
        """Wait for events from `position` on; return them and the next position. No events: the log is closed."""
        while self._removed + len(self._events) <= position and not self.closed:
            await self._changed.wait()
        return self._events[max(position - self._removed, self._first) :], self._removed + len(self._events)

    # For the store

    def dump(self) -> bytes:
        return self.dump_events(self.events)

    @staticmethod
    def dump_events(events: list[JobEvent]) -> bytes:
        return orjson.dumps([[e.number, e.name, e.data.decode("utf-8", "replace")] for e in events])

    @staticmethod
    def load(dumped: bytes) -> list[JobEvent]:
        return [JobEvent(number, name, data.encode()) for number, name, data in orjson.loads(dumped)]
