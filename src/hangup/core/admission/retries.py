"""The retry budget: how much of the traffic may be second attempts.

Every attempt earns a share of a retry, every retry costs one. What was earned can be saved up to a reserve, so that a
short bad time does not cut off those whose second attempt would have succeeded.
"""

from __future__ import annotations

_RESERVE = 100.0  # retries


class RetryBudget:
    """Of one tenant: nobody else pays for its retries."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _RESERVE

    def note(self, retry: bool, share_max: float) -> None:
        self._left = max(min(self._left + share_max - retry, _RESERVE), 0.0)

    @property
    def spent(self) -> bool:
        return self._left < 1
