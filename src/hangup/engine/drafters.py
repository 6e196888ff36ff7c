"""Three cheap drafters for speculative decoding. The engine verifies every guess: a wrong one costs time, never correctness.

A drafter makes at most one forward per step, so that the engine can drain its mailbox between steps. It samples with the
same random numbers as the verifying forward, so the guesses are right at any temperature wherever the two distributions
are close.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from hangup.engine.model import Batch, Ints, Luck, Model, Scores
from hangup.engine.options import EngineOptions
from hangup.engine.scheduler import Sequence
from hangup.errors import ConfigError

LuckOf = Callable[[list[Sequence]], Luck]  # for the place after each sequence's guesses


class Drafter(Protocol):
    steps: int  # upper bound of the engine's drafting loop
    reads: bool  # whether the engine must call `read` after a prefill

    def step(self, sequences: list[Sequence], luck: LuckOf) -> None:
        """Add to the `draft` of each sequence, with at most one forward."""

    def read(self, sequences: list[Sequence]) -> None:
        """Catch up with the tokens that prefill read, with one forward."""

    def verified(self, scores: Scores, sequences: list[Sequence], places: Ints) -> None:
        """Accept that the engine extended the sequences; `places` says where each one's last valid token was scored."""


class NGram:
    """Searches the text so far for the last few tokens and proposes what followed them last time."""

    steps, reads = 1, False

    def __init__(self, tokens_max: int, longest: int = 4, shortest: int = 2, look_back: int = 4096) -> None:
        self._tokens_max = tokens_max
        self._sizes = range(longest, shortest - 1, -1)
        self._look_back = look_back

    def step(self, sequences: list[Sequence], luck: LuckOf) -> None:
        for sequence in sequences:
            sequence.draft = self._find(sequence.tokens[-self._look_back :])

    def _find(self, tokens: list[int]) -> list[int]:
        text = np.array(tokens, np.int32)
        for size in self._sizes:
            if len(text) <= size:
                continue
            starts = np.flatnonzero(text[size - 1 : -1] == text[-1])  # where the pattern's last token occurs
            for offset in range(1, size):
                starts = starts[text[starts + size - 1 - offset] == text[-1 - offset]]
            if len(starts):
                follow = int(starts[-1]) + size
                return tokens[follow : follow + self._tokens_max]
        return []

    def read(self, sequences: list[Sequence]) -> None:
        raise AssertionError("it reads nothing")

    def verified(self, scores: Scores, sequences: list[Sequence], places: Ints) -> None:
        pass


class Mtp:
    """Drafts with the model's own multi-token-prediction head, one token per step for all slots together."""

    reads = False

    def __init__(self, model: Model, tokens_max: int) -> None:
        self.steps = tokens_max
        self._model = model

    def step(self, sequences: list[Sequence], luck: LuckOf) -> None:
        last = np.array([(s.draft or s.tokens)[-1] for s in sequences], np.int32)
        slots = np.array([s.slot for s in sequences], np.int32)
        for sequence, token in zip(sequences, self._model.mtp(slots, last, luck(sequences)).tolist(), strict=True):
            sequence.draft.append(token)

    def read(self, sequences: list[Sequence]) -> None:
        raise AssertionError("it reads nothing")

    def verified(self, scores: Scores, sequences: list[Sequence], places: Ints) -> None:
        self._model.keep_states(scores, np.array([s.slot for s in sequences], np.int32), places)


class DraftModel:
    """Drafts with a small model. Its own cache uses the same block numbers as the main model's cache."""

    reads = True

    def __init__(self, model: Model, tokens_max: int, block_tokens: int) -> None:
        self.steps = tokens_max
        self._model = model
        self._block_tokens = block_tokens

    def step(self, sequences: list[Sequence], luck: LuckOf) -> None:
        chosen = self._feed(sequences, [s.tokens + s.draft for s in sequences]).choose(luck(sequences))[:, 0]
        for sequence, token in zip(sequences, chosen.tolist(), strict=True):
            sequence.draft.append(token)

    def read(self, sequences: list[Sequence]) -> None:
        self._feed(sequences, [s.tokens[: s.cached] for s in sequences])

    def _feed(self, sequences: list[Sequence], texts: list[list[int]]) -> Scores:
        rows = [(s, s.draft_cached, text[s.draft_cached :]) for s, text in zip(sequences, texts, strict=True)]
        scores = self._model.forward(Batch.of(rows, self._block_tokens, every=False))
        for sequence, text in zip(sequences, texts, strict=True):
            sequence.draft_cached = len(text)
        return scores

    def verified(self, scores: Scores, sequences: list[Sequence], places: Ints) -> None:
        for sequence in sequences:  # later tokens overwrite the cache entries of wrong guesses
            sequence.draft_cached = min(sequence.draft_cached, sequence.cached)


def make_drafter(options: EngineOptions, model: Model, draft_model: Model | None) -> Drafter | None:
    match options.spec:
        case "ngram":
            return NGram(options.draft_tokens_max)
        case "mtp":
            if not model.has_mtp:
                raise ConfigError([f"spec: {model.name} has no MTP head\n  hint: use --spec ngram, or draft"])
            return Mtp(model, options.draft_tokens_max)
        case "draft":
            if draft_model is None or draft_model.vocab != model.vocab or draft_model.context < model.context:
                raise ConfigError(["draft_model: needs the vocabulary of the model and at least its context"])
            return DraftModel(draft_model, options.draft_tokens_max, options.block_tokens)
    return None
