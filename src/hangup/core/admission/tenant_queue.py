"""`TenantQueue`: one tenant's waiting calls, in order, grouped by the backends that can take them.

A call that waits for one backend must not block a call for another. So there is a group for each set of backends, and the
search for the next call skips the groups whose backends are full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator
from typing import Generic, Protocol, TypeVar

NOBODY: frozenset[str] = frozenset()
QueueGroup = tuple[frozenset[str] | None, frozenset[str]]  # (only these backends (None: any), none of those)
ANYWHERE: QueueGroup = (None, NOBODY)
_NONE: tuple[QueueGroup, ...] = ()


class QueuedCall(Protocol):
    """A call as its tenant's queue sees it."""

    queue_group: QueueGroup  # the backends that it waits for
    order: int  # its number in the queue


Q = TypeVar("Q", bound=QueuedCall)


class TenantQueue(Generic[Q]):
    """The waiting calls of one tenant."""

    __slots__ = ("_groups", "count")

    def __init__(self) -> None:
        self._groups: dict[QueueGroup, OrderedDict[Q, None]] = {}  # each in order; none is empty
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Q]:
        """Yield all calls, group by group."""
        for group in self._groups.values():
            yield from group

    def push(self, ticket: Q) -> None:
        """Add a call at the end, or at the front if its `order` says so."""
        group = self._groups.setdefault(ticket.queue_group, OrderedDict())
        first = group and ticket.order < next(iter(group)).order
        group[ticket] = None
        if first:
            group.move_to_end(ticket, last=False)
        self.count += 1

    def remove(self, ticket: Q) -> None:
        group = self._groups[ticket.queue_group]
        del group[ticket]
        if not group:
            del self._groups[ticket.queue_group]
        self.count -= 1

    def oldest(self) -> Q:
        groups = self._groups.values()
        if len(groups) == 1:  # the usual case
            return next(iter(next(iter(groups))))
        return min((next(iter(group)) for group in groups), key=_order)

    def ends(self, full: Container[QueueGroup] = _NONE) -> tuple[Q, Q] | None:
        """Return the oldest and the newest call, of those that wait for something other than `full`."""
        groups = [calls for group, calls in self._groups.items() if group not in full] if full else list(self._groups.values())
        if len(groups) == 1:  # the usual case
            return next(iter(groups[0])), next(reversed(groups[0]))
        if not groups:
            return None
        return min((next(iter(g)) for g in groups), key=_order), max((next(reversed(g)) for g in groups), key=_order)


def _order(ticket: QueuedCall) -> int:
    return ticket.order
