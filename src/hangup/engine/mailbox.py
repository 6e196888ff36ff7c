"""What other threads tell the engine's thread: new calls and cancels. The only thing here that knows of threads."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

Call = TypeVar("Call")


class Mailbox(Generic[Call]):
    """Posting is O(1) and never waits for a step; draining takes everything at once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[Call] = []
        self._cancels: list[Call] = []
        self._closed = False
        self._woken = False

    def post_call(self, call: Call) -> bool:
        """False if the mailbox is closed: nobody would ever look at it."""
        with self._changed:
            if not self._closed:
                self._calls.append(call)
                self._changed.notify()
            return not self._closed

    def post_cancel(self, call: Call) -> None:
        with self._changed:
            self._cancels.append(call)
            self._changed.notify()

    def wake(self) -> None:
        """There is something to do again that is no message: a reader who had paused reads on."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    @property
    def closed(self) -> bool:
        return self._closed

    def drain(self) -> tuple[list[Call], list[Call]]:
        """New calls and cancels since the last time. Nearly always there are none, and then no lock is taken."""
        if not self._calls and not self._cancels:
            return [], []
        with self._changed:
            drained = self._calls, self._cancels
            self._calls, self._cancels = [], []
        return drained

    def wait(self) -> None:
        """Rests until there is something to drain, or the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._cancels or self._closed or self._woken)
            self._woken = False
