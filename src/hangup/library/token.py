"""A flag that says "stop", for engines that run in threads and cannot be cancelled by the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Cancelled(Exception):
    """Raised by `CancelToken.check()` once the call is over."""


class CancelToken:
    """Set once, from any thread; looked at between two steps of an engine.

    `token.cancelled` asks, `token.check()` raises, and `token()` is itself a stopping criterion as transformers and
    llama-cpp-python take it: called with whatever they pass, it answers whether to stop.
    """

    __slots__ = ("_callbacks", "_event", "_lock")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<CancelToken {'cancelled' if self.cancelled else 'live'}>"

    def __call__(self, *_: object, **__: object) -> bool:
        return self._event.is_set()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        if self._event.is_set():
            raise Cancelled

    def wait(self, timeout_s: float | None = None) -> bool:
        """Blocks the calling thread until the token is cancelled or the time is over."""
        return self._event.wait(timeout_s)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Calls back once, in the thread that cancels; at once if that has happened already."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def cancel(self) -> None:
        with self._lock:
            if self._event.is_set():
                return
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
