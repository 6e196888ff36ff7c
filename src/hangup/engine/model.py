"""The interface between the engine and a model. The engine knows slots, blocks and tokens; a model knows arrays.

One forward takes a rectangle of tokens: a row per call, padded to the longest row. A model writes padding to the scrap block,
and the engine never reads its scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hangup.engine.scheduler import SCRAP, Sequence
from hangup.engine.tokenizer import Tokenizer

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    tokens: Ints  # [rows, width]
    starts: Ints  # [rows]: how many tokens of the row are in the cache already
    counts: Ints  # [rows]: how many tokens of the row are not padding
    blocks: Ints  # [rows, blocks]: the row's cache blocks, as far as this forward needs them
    slots: Ints  # [rows]
    every: bool  # whether to score every token, or only the last one of each row

    @classmethod
    def of(cls, rows: list[tuple[Sequence, int, list[int]]], block_tokens: int, *, every: bool) -> Batch:
        """Build a batch from rows of (sequence, start, tokens)."""
        width = max(len(tokens) for _, _, tokens in rows)
        depth = max(-(-(start + len(tokens)) // block_tokens) for _, start, tokens in rows)
        padded = np.zeros((len(rows), width), np.int32)
        blocks = np.full((len(rows), depth), SCRAP, np.int32)
        for row, (sequence, _, tokens) in enumerate(rows):
            padded[row, : len(tokens)] = tokens
            row_blocks = sequence.blocks[:depth]
            blocks[row, : len(row_blocks)] = row_blocks
        starts = np.array([start for _, start, _ in rows], np.int32)
        counts = np.array([len(tokens) for _, _, tokens in rows], np.int32)
        return cls(padded, starts, counts, blocks, np.array([s.slot for s, _, _ in rows], np.int32), every)


@dataclass(frozen=True, slots=True)
class Luck:
    """The sampling parameters per row: temperature and top-p, and a seed for each place.

    A choice depends on the scores and on the seed at its place, and on nothing else. So speculation cannot change the
    answer: the verifying forward chooses at each place exactly what a plain forward would have chosen.
    """

    temperature: Floats  # [rows]; 0 is greedy
    top_p: Floats  # [rows]
    seeds: NDArray[np.uint32]  # [rows, places]


class Scores(Protocol):
    """The result of a forward, kept on the model's device."""

    def choose(self, luck: Luck) -> Ints:
        """Return the chosen tokens, [rows, places]."""

    def logprobs(self, row: int, place: int, token: int, top: int) -> tuple[float, list[tuple[int, float]]]: ...

    def sums(self) -> Floats:
        """Return each row's last states, normed and summed over its tokens, [rows, width]. Call before the next forward."""


class Model(Protocol):
    name: str
    vocab: int
    context: int
    eos: frozenset[int]
    has_mtp: bool
    tokenizer: Tokenizer

    def make_cache(self, slots: int, blocks: int, block_tokens: int) -> None:
        """Allocate the cache, once, before the first forward; block `SCRAP` comes on top of `blocks`."""

    def forward(self, batch: Batch) -> Scores: ...

    def keep_states(self, scores: Scores, slots: Ints, places: Ints) -> None:
        """Store the state at one place of each row by slot; the MTP head continues from it."""

    def mtp(self, slots: Ints, tokens: Ints, luck: Luck) -> Ints:
        """Run one step of the MTP head: guess the tokens after `tokens` from the stored states, and advance the states."""


def place_seeds(seeds: NDArray[np.uint64], places: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return a seed for each place of a request; seeds of adjacent requests or places are unrelated."""
    return (_mixed(_mixed(seeds) + places) >> np.uint64(32)).astype(np.uint32)


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits as splitmix64 does."""
    number = (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
