"""Carries out what the admission decided, one action after another.

An action may end a call, and a call that ends frees a place, which is a decision again. Acted upon at once, a queue full of
callers who have left would be as many calls deep as it is long; so whatever is decided meanwhile is put behind the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from hangup.core.admission import Action

K = TypeVar("K")


class ActionLoop(Generic[K]):
    """`carry_out` is never entered twice; an action that fails is handed to `failed` and stops no other."""

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
            return  # whoever is at it comes to these, too
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
