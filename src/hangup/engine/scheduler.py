"""Decides which call gets a slot and which blocks, and what the next forward computes. No model, no thread, no clock.

A call gets all the blocks that it can ever need together with its slot, or waits. So the engine never preempts a running
call, and the cache cannot run out in the middle of an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hangup.engine.request import EndReason, SubmittedRequest

SCRAP = 0  # padding is written to this block; no call owns it


class BlockPool:
    """The free blocks of the KV cache, by number. Only the call knows which blocks it holds."""

    def __init__(self, count: int, block_tokens: int) -> None:
        self.count = count
        self.block_tokens = block_tokens
        self._free = list(range(count, SCRAP, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def take(self, count: int) -> list[int]:
        assert count <= len(self._free)
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: list[int]) -> None:
        self._free += reversed(blocks)
        assert len(self._free) <= self.count, "a block was released twice"


@dataclass(slots=True, eq=False)
class Sequence:
    """A call inside the engine. It runs while it has a slot; it has ended once it has a reason."""

    request: SubmittedRequest
    tokens: list[int] = field(default_factory=list)  # the prompt, then the answer
    limit: int = 0  # most tokens, prompt included
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    cached: int = 0  # tokens whose keys and values are in the cache
    draft: list[int] = field(default_factory=list)  # guesses that the next forward will verify
    draft_cached: int = 0  # the same as `cached`, in the draft model's own cache
    drafted: int = 0
    accepted: int = 0
    states: NDArray[np.float32] | None = None  # for an embedding: the sum over the tokens read so far
    reason: EndReason | None = None
    paused: bool = False  # the reader does not keep up; set by another thread

    @property
    def answered(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def running(self) -> bool:
        return self.slot >= 0

    @property
    def decoding(self) -> bool:
        return self.running and self.answered > 0


@dataclass(frozen=True, slots=True)
class Prefill:
    """The next forward reads these parts of prompts: (sequence, number of tokens)."""

    chunks: list[tuple[Sequence, int]]


@dataclass(frozen=True, slots=True)
class Decode:
    """The next forward generates the next token, or tokens, of each sequence."""

    sequences: list[Sequence]


class Scheduler:
    def __init__(self, slots: int, pool: BlockPool, context: int, prefill_tokens_max: int) -> None:
        self.pool = pool
        self.context = context
        self.prefill_tokens_max = prefill_tokens_max
        self.slots: list[Sequence | None] = [None] * slots
        self.waiting: dict[Sequence, None] = {}  # in order of arrival; removal is O(1)
        self._decoded_last = True

    @property
    def running(self) -> list[Sequence]:
        return [sequence for sequence in self.slots if sequence is not None]

    def add(self, sequence: Sequence) -> None:
        request = sequence.request
        assert 0 < len(request.prompt) < self.context and request.tokens_max > 0, "checked on submit"
        sequence.tokens = list(request.prompt)
        sequence.limit = min(self.context, len(request.prompt) + request.tokens_max)
        self.waiting[sequence] = None

    def end(self, sequence: Sequence, reason: EndReason) -> bool:
        """Remove a waiting or running call; return False if it had already ended."""
        if sequence.reason is not None:
            return False
        sequence.reason = reason
        if sequence.running:
            self.slots[sequence.slot] = None
            self.pool.give_back(sequence.blocks)
            sequence.slot, sequence.blocks, sequence.draft = -1, [], []
        else:
            self.waiting.pop(sequence, None)
        return True

    def admit(self) -> int:
        """Give free slots to waiting calls, first come, first served; return how many got one."""
        admitted = 0
        while self.waiting and None in self.slots:
            sequence = next(iter(self.waiting))
            needed = self.pool.needed(sequence.limit)
            if needed > self.pool.free:
                break  # no call may overtake: a long call must not starve
            del self.waiting[sequence]
            sequence.blocks = self.pool.take(needed)
            sequence.slot = self.slots.index(None)
            self.slots[sequence.slot] = sequence
            admitted += 1
        return admitted

    def schedule(self) -> Prefill | Decode | None:
        """Alternate between prompts and answers, so that neither a long prompt nor full slots hold up the others."""
        running = self.running
        decoding = [sequence for sequence in running if sequence.decoding and not sequence.paused]
        reading = [sequence for sequence in running if not sequence.decoding]
        if reading and (self._decoded_last or not decoding):
            self._decoded_last = False
            return Prefill(self._chunks(reading))
        self._decoded_last = True
        return Decode(decoding) if decoding else None

    def _chunks(self, reading: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Split the prefill budget into equal shares; longer prompts get what short ones do not need."""
        chunks, remaining = [], self.prefill_tokens_max
        ranked = sorted(reading, key=lambda s: len(s.tokens) - s.cached)
        for index, sequence in enumerate(ranked):
            share = max(1, remaining // (len(ranked) - index))
            count = min(len(sequence.tokens) - sequence.cached, share, remaining)
            if count:
                chunks.append((sequence, count))
                remaining -= count
        return chunks
