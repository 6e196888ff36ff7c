"""A timer for the earliest of several moments, which may change before it comes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

_JUST_AFTER_S = 0.001


class DueTimer:
    def __init__(self, over: Callable[[], None]) -> None:
        self.at = math.inf  # monotonic
        self._over = over
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Call `over` just after this moment, and at no other; infinity: not at all."""
        if self._timer is not None:
            self._timer.cancel()
        self.at, self._timer = at, None
        if at < math.inf:
            delay_s = max(0.0, at - time.monotonic()) + _JUST_AFTER_S
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._over)
