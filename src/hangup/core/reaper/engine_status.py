"""`EngineStatus`: an engine's own report of its current work."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Slot(NamedTuple):
    """One of the slots in which an engine runs a call."""

    id: int
    busy: bool
    task: str = ""  # the engine's own name for the work; "" if it reports none
    tokens: int = 0  # tokens of the answer so far
    read: int = 0  # tokens of the prompt read so far


class EngineStatus(NamedTuple):
    """Counts of running and waiting calls, and single slots or calls where the engine reports them."""

    running: int
    waiting: int = 0
    slots: tuple[Slot, ...] | None = None
    tokens: int | None = None  # computed since the engine started, if it counts them
    calls: dict[str, int] | None = None  # every call it has, by our key, with its tokens so far, if it reports them
    cut: Mapping[str, int] = MappingProxyType({})  # calls it stopped recently, with all their tokens

    @property
    def work(self) -> int:
        return self.running + self.waiting

    def slot(self, id: int) -> Slot | None:
        return next((slot for slot in self.slots or () if slot.id == id), None)

    @property
    def shows_progress(self) -> bool:
        """Return whether the engine's figures move when it makes progress."""
        return self.slots is not None or self.tokens is not None

    @property
    def progress(self) -> tuple[object, ...]:
        """Return a value that changes whenever the engine makes visible progress."""
        if self.slots is not None:
            return tuple((slot.id, slot.task, slot.tokens, slot.read) for slot in self.slots if slot.busy)
        return self.running, self.waiting, self.tokens
