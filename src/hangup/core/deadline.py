"""`Deadline`: one limit for work in several stages, each of which takes what is left, or a part of it."""

from __future__ import annotations


class Deadline:
    def __init__(self, at: float) -> None:
        """`at` is a time of the monotonic clock, like every `now`."""
        self.at = at

    def left(self, now: float) -> float:
        """Return how many seconds are left; never less than 0."""
        return max(0.0, self.at - now)

    def part(self, share: float, now: float) -> Deadline:
        """Return the deadline of a stage that may take this share of what is left, so that those after it get the rest."""
        return Deadline(now + share * self.left(now))
