"""What an engine says that it is doing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Slot(NamedTuple):
    """One of the places in which an engine runs a call."""

    id: int
    busy: bool
    task: str = ""  # the engine's own name for what runs there; "" when it tells none
    tokens: int = 0  # of its answer so far
    read: int = 0  # of its prompt so far


class EngineStatus(NamedTuple):
    """Counts, and single slots where the engine tells them."""

    running: int
    waiting: int = 0
    slots: tuple[Slot, ...] | None = None
    tokens: int | None = None  # computed since the engine's start, where it counts them
    calls: dict[str, int] | None = None  # every call it has by our key, with its tokens so far, where it tells that
    cut: Mapping[str, int] = MappingProxyType({})  # those that were stopped lately, with all their tokens

    @property
    def work(self) -> int:
        return self.running + self.waiting

    def slot(self, id: int) -> Slot | None:
        return next((slot for slot in self.slots or () if slot.id == id), None)

    @property
    def shows_progress(self) -> bool:
        """Whether its figures move when it gets something done."""
        return self.slots is not None or self.tokens is not None

    @property
    def progress(self) -> tuple[object, ...]:
        """Changes whenever the engine gets anything done, as far as it shows."""
        if self.slots is not None:
            return tuple((slot.id, slot.task, slot.tokens, slot.read) for slot in self.slots if slot.busy)
        return self.running, self.waiting, self.tokens
