"""Adds up the tokens that all members received from one engine, to be compared with the engine's own count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class TokenRow(NamedTuple):
    """What one member received from one engine so far; added up, what all of them did."""

    seen: int = 0  # tokens that arrived
    unseen: int = 0  # tokens that its live calls may have had without showing them
    call_s: float = 0.0  # the durations of all its calls, added up
    served_s: float = 0.0  # seconds in which it had any call; added up, at least those in which anybody had one
    calls: int = 0  # live ones
    textless: bool = False  # it has calls that yield no tokens

    def row(self) -> tuple[object, ...]:
        return tuple(self)


class TokenSums:
    """The sum for one engine. Tokens of members that have left stay in it, by their last report."""

    def __init__(self) -> None:
        self._last: dict[str, TokenRow] = {}
        self._of_gone = 0

    def add_up(self, own: TokenRow, expected: Iterable[str], rows: Mapping[str, TokenRow]) -> tuple[TokenRow, bool] | None:
        """Return the sum, and whether nobody has left since the last one; None if somebody did not answer."""
        if not all(member in rows for member in expected):
            return None
        gone = [row for member, row in self._last.items() if member not in rows]
        self._of_gone += sum(row.seen for row in gone)
        self._last = dict(rows)
        everybody = [own, *rows.values()]
        total = TokenRow(
            seen=sum(row.seen for row in everybody) + self._of_gone,
            unseen=sum(row.unseen for row in everybody),
            call_s=sum((row.call_s for row in everybody), 0.0),
            served_s=sum((row.served_s for row in everybody), 0.0),
            calls=sum(row.calls for row in everybody),
            textless=any(row.textless for row in everybody),
        )
        return total, not gone
