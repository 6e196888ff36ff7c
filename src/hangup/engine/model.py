"""What a model must do for the engine. The engine knows slots, blocks and tokens; a model knows arrays.

One forward takes a rectangle of tokens: a row per call, padded to the longest. Padding is written to the scrap block and
its scores are never looked at.
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
    starts: Ints  # [rows]: tokens of the row that are cached already
    counts: Ints  # [rows]: tokens of the row that are not padding
    blocks: Ints  # [rows, blocks]: where the row's cache is, as far as this forward looks
    slots: Ints  # [rows]
    every: bool  # scores for every token, or for the last of each row

    @classmethod
    def of(cls, rows: list[tuple[Sequence, int, list[int]]], block_tokens: int, *, every: bool) -> Batch:
        """Rows are (sequence, start, tokens)."""
        width = max(len(tokens) for _, _, tokens in rows)
        depth = max(-(-(start + len(tokens)) // block_tokens) for _, start, tokens in rows)
        made = np.zeros((len(rows), width), np.int32)
        blocks = np.full((len(rows), depth), SCRAP, np.int32)
        for row, (sequence, _, tokens) in enumerate(rows):
            made[row, : len(tokens)] = tokens
            held = sequence.blocks[:depth]
            blocks[row, : len(held)] = held
        starts = np.array([start for _, start, _ in rows], np.int32)
        counts = np.array([len(tokens) for _, _, tokens in rows], np.int32)
        return cls(made, starts, counts, blocks, np.array([s.slot for s, _, _ in rows], np.int32), every)


@dataclass(frozen=True, slots=True)
class Luck:
    """How to choose, per row: temperature and top-p, and a seed for each place.

    A choice is a function of the scores and of the seed at its place, nothing else. So speculation cannot change what is
    said: the verifying forward chooses at each place exactly what a plain one would have.
    """

    temperature: Floats  # [rows]; 0 is greedy
    top_p: Floats  # [rows]
    seeds: NDArray[np.uint32]  # [rows, places]


class Scores(Protocol):
    """What a forward found out, kept where the model keeps its arrays."""

    def choose(self, luck: Luck) -> Ints:
        """The chosen tokens, [rows, places]."""

    def logprobs(self, row: int, place: int, token: int, top: int) -> tuple[float, list[tuple[int, float]]]: ...

    def sums(self) -> Floats:
        """The last states of each row's tokens, normed and added up, [rows, width]; to be asked before the next forward."""


class Model(Protocol):
    name: str
    vocab: int
    context: int
    eos: frozenset[int]
    has_mtp: bool
    tokenizer: Tokenizer

    def make_cache(self, slots: int, blocks: int, block_tokens: int) -> None:
        """Once, before the first forward; block `SCRAP` comes on top of `blocks`."""

    def forward(self, batch: Batch) -> Scores: ...

    def keep_states(self, scores: Scores, slots: Ints, places: Ints) -> None:
        """From here the MTP head goes on: the state behind one place of each row, kept by slot."""

    def mtp(self, slots: Ints, tokens: Ints, luck: Luck) -> Ints:
        """One step of the MTP head: the tokens after `tokens`, guessed from the states kept, which move on."""


def place_seeds(seeds: NDArray[np.uint64], places: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """A seed for each place of a request; neither neighbouring requests nor neighbouring places have anything in common."""
    return (_mixed(_mixed(seeds) + places) >> np.uint64(32)).astype(np.uint32)


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """As splitmix64 does it."""
    number = (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
