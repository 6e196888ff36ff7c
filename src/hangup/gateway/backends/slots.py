"""Tracks which slots of an engine are free, where calls can be pinned to slots."""

from __future__ import annotations

from hangup.core.reaper import Slot


class SlotPool:
    __slots__ = ("_free", "_looked", "_others", "_seen", "_taken", "count")

    def __init__(self) -> None:
        self.count = 0  # slots of the engine; 0 where calls are not pinned
        self._free: list[int] = []
        self._taken: set[int] = set()  # by our calls, live or not yet stopped
        self._others: frozenset[int] = frozenset()  # busy with foreign work, by the engine's last report
        self._seen: dict[int, str] = {}  # slots that the last report showed busy with foreign work, and their tasks
        self._looked = False

    def __repr__(self) -> str:
        return f"<slots free={self._free} taken={sorted(self._taken)} others={sorted(self._others)}>"

    def resize(self, count: int) -> None:
        """Set the number of slots. The engine may have restarted with fewer; taken slots stay taken until they are freed."""
        self.count = count
        self._free = [slot for slot in range(count) if slot not in self._taken]

    @property
    def taken(self) -> frozenset[int]:
        return frozenset(self._taken)

    def occupied(self, slots: tuple[Slot, ...], taken_before: frozenset[int]) -> int:
        """Return how many slots were busy with the same foreign task in two reports; no call is pinned to those.

        The first report counts at once: work that was there before us is not ours. `taken_before` are the slots that were ours
        when the report was requested: it may show them busy with calls that have ended since.
        """
        ours = self._taken | taken_before
        seen = {slot.id: slot.task for slot in slots if slot.busy and slot.id not in ours}
        self._others = frozenset(id for id, task in seen.items() if not self._looked or self._seen.get(id) == task)
        self._seen, self._looked = seen, True
        return len(self._others)

    @property
    def in_doubt(self) -> bool:
        """True if the last report showed any slot busy with foreign work."""
        return bool(self._seen)

    def take(self) -> int | None:
        """Take the free slot that was used last; return None if no slot is known to be free."""
        for at in range(len(self._free) - 1, -1, -1):
            if self._free[at] not in self._others:
                slot = self._free.pop(at)
                self._taken.add(slot)
                return slot
        return None

    def give(self, slot: int) -> None:
        """Free a slot after its call has left it."""
        self._taken.discard(slot)
        if slot < self.count and slot not in self._free:
            self._free.append(slot)
