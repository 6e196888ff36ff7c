"""A stop flag for engines that run in threads, where the event loop cannot cancel them."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Cancelled(Exception):
    """Raised by `CancelToken.check()` once the call is over."""


class CancelToken:
    """A flag that is set once, from any thread, and that an engine checks between two steps.

    `token.cancelled` returns the flag, `token.check()` raises, and `token()` is a stopping criterion for transformers and
    llama-cpp-python: it accepts whatever arguments they pass and returns whether to stop.
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
        """Block the calling thread until the token is cancelled or the timeout passes; return whether it is cancelled."""
        return self._event.wait(timeout_s)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, in the thread that cancels, or at once if the token is already cancelled."""
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
