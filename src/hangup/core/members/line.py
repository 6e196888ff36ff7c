"""A line between a member and the leader: numbers what is sent each way, so that a loss is noticed.

A count of calls is worth something only if all that its member said before has arrived. So nothing counts after a gap: the line
is opened anew, and the member begins it with all that the leader must know.
"""

from __future__ import annotations


class Line:
    """One end of a line. Both ends of a line have the same `session`, which the member chose."""

    __slots__ = ("_received", "_sent", "session")

    def __init__(self, session: int) -> None:
        self.session = session
        self._sent = 0
        self._received = 0

    def next_number(self) -> int:
        self._sent += 1
        return self._sent

    def accept(self, number: int) -> bool:
        """Note what has arrived; return False if something before it is missing."""
        if number != self._received + 1:
            return False
        self._received = number
        return True
