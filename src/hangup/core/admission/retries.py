"""The retry budget: bounds the share of the traffic that may be second attempts.

Every attempt earns a share of a retry, every retry costs one. Unspent retries accumulate up to a reserve, so that a short
outage does not cut off clients whose second attempt would have succeeded.
"""

from __future__ import annotations

from typing import Final

_RESERVE: Final = 100.0  # retries


class RetryBudget:
    """The retry budget of one tenant: no other tenant pays for its retries."""

    __slots__ = ("_remaining", "full")

    def __init__(self) -> None:
        self._remaining = _RESERVE
        self.full = True  # a first attempt changes nothing

    def note(self, retry: bool, share_max: float) -> None:
        self._remaining = max(min(self._remaining + share_max - retry, _RESERVE), 0.0)
        self.full = self._remaining == _RESERVE

    @property
    def spent(self) -> bool:
        return self._remaining < 1
