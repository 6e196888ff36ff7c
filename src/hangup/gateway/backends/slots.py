"""Which slots of an engine may be given to calls, where calls can be pinned to slots."""

from __future__ import annotations

from hangup.core.reaper import Slot


class SlotPool:
    def __init__(self) -> None:
        self.count = 0  # slots that the engine has; 0 where calls are not pinned
        self._free: list[int] = []
        self._taken: set[int] = set()  # by calls of ours, live or not yet gone
        self._others: frozenset[int] = frozenset()  # at work on what is not ours, by the engine's last words
        self._seen: dict[int, str] = {}  # such as the last look showed, by what they do
        self._looked = False

    def __repr__(self) -> str:
        return f"<slots free={self._free} taken={sorted(self._taken)} others={sorted(self._others)}>"

    def resize(self, count: int) -> None:
        """The engine has so many. It may have been started anew with fewer; those that are taken stay so until given back."""
        self.count = count
        self._free = [slot for slot in range(count) if slot not in self._taken]

    @property
    def taken(self) -> frozenset[int]:
        return frozenset(self._taken)

    def occupied(self, slots: tuple[Slot, ...], taken_before: frozenset[int]) -> int:
        """How many are at the same work that is not ours in two looks: nothing is pinned to those. The first look is believed
        at once: what was there before us is not ours. `taken_before` were ours when the engine was asked: they may be shown as
        busy with what has ended since."""
        ours = self._taken | taken_before
        seen = {slot.id: slot.task for slot in slots if slot.busy and slot.id not in ours}
        self._others = frozenset(id for id, task in seen.items() if not self._looked or self._seen.get(id) == task)
        self._seen, self._looked = seen, True
        return len(self._others)

    @property
    def in_doubt(self) -> bool:
        """Whether any was seen at work that is not ours."""
        return bool(self._seen)

    def take(self) -> int | None:
        """The free slot that was used last; None when there is none that is known to be free."""
        for at in range(len(self._free) - 1, -1, -1):
            if self._free[at] not in self._others:
                slot = self._free.pop(at)
                self._taken.add(slot)
                return slot
        return None

    def give(self, slot: int) -> None:
        """Its call is gone from it."""
        self._taken.discard(slot)
        if slot < self.count and slot not in self._free:
            self._free.append(slot)
