"""Carries out the actions that the admission decided, one after another.

An action may end a call, and the end of a call frees a place, which leads to more actions. Recursion would be as deep as a
queue of calls whose clients have left is long; so new actions are appended to the queue instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from hangup.core.admission import Action

K = TypeVar("K")


class ActionLoop(Generic[K]):
    """Calls `carry_out` for one action at a time, never recursively. A failed action goes to `failed` and stops no other."""

    __slots__ = ("_busy", "_carry_out", "_failed", "_waiting")

    def __init__(self, carry_out: Callable[[Action[K]], None], failed: Callable[[Action[K], Exception], None]) -> None:
        self._carry_out = carry_out
        self._failed = failed
        self._waiting: deque[Action[K]] = deque()
        self._busy = False

    def run(self, actions: Iterable[Action[K]]) -> None:
        waiting = self._waiting
        waiting.extend(actions)
        if self._busy:
            return  # the loop further up the stack carries these out, too
        self._busy = True
        try:
            while waiting:
                action = waiting.popleft()
                try:
                    self._carry_out(action)
                except Exception as error:
                    self._failed(action, error)
        finally:
            self._busy = False
