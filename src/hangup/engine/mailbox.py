"""The mailbox through which other threads send new calls and cancels to the engine's thread."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

Call = TypeVar("Call")


class Mailbox(Generic[Call]):
    """A thread-safe queue of new calls and cancels. Posting is O(1) and never waits for a step; `drain` takes everything."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[Call] = []
        self._cancels: list[Call] = []
        self._closed = False
        self._woken = False

    def post_call(self, call: Call) -> bool:
        """Post a new call; return False if the mailbox is closed, since nobody would ever read it."""
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
        """Wake the engine's thread without a message: a paused reader reads again."""
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
        """Return the new calls and cancels since the last drain. Takes no lock in the usual case that there are none."""
        if not self._calls and not self._cancels:
            return [], []
        with self._changed:
            drained = self._calls, self._cancels
            self._calls, self._cancels = [], []
        return drained

    def wait(self) -> None:
        """Block until there is something to drain, `wake` is called or the mailbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._cancels or self._closed or self._woken)
            self._woken = False
