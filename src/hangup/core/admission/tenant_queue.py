"""One tenant's calls that wait, in order, and apart by the seats that can take them.

A call that waits for one backend must not hold up a call for another. So they are kept in groups, one for each set of
seats, and who is next is asked for without those groups whose seats are full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator

from hangup.core.admission.ticket import AnyTicket, Where

_NONE: tuple[Where, ...] = ()


class TenantQueue:
    __slots__ = ("_count", "_groups")

    def __init__(self) -> None:
        self._groups: dict[Where, OrderedDict[AnyTicket, None]] = {}  # each in order, and none empty
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[AnyTicket]:
        """All of them, group by group."""
        for group in self._groups.values():
            yield from group

    def push(self, ticket: AnyTicket) -> None:
        """At the end, or where it was taken from: by its `order`."""
        group = self._groups.setdefault(ticket.where, OrderedDict())
        first = group and ticket.order < next(iter(group)).order
        group[ticket] = None
        if first:
            group.move_to_end(ticket, last=False)
        self._count += 1

    def remove(self, ticket: AnyTicket) -> None:
        group = self._groups[ticket.where]
        del group[ticket]
        if not group:
            del self._groups[ticket.where]
        self._count -= 1

    def oldest(self) -> AnyTicket:
        return min((next(iter(group)) for group in self._groups.values()), key=_order)

    def ends(self, full: Container[Where] = _NONE) -> tuple[AnyTicket, AnyTicket] | None:
        """The oldest and the newest, of those who wait for something else than what is full."""
        groups = [group for where, group in self._groups.items() if where not in full]
        if len(groups) == 1:  # as it mostly is
            return next(iter(groups[0])), next(reversed(groups[0]))
        if not groups:
            return None
        return min((next(iter(g)) for g in groups), key=_order), max((next(reversed(g)) for g in groups), key=_order)


def _order(ticket: AnyTicket) -> int:
    return ticket.order
