"""Models that compute next to nothing and remember everything, for tests of the engine around them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hangup.engine.engine import Engine, Outbox, Submission
from hangup.engine.model import Batch, Floats, Ints, Luck, Scores
from hangup.engine.numpy_model import NumpyScores, choose
from hangup.engine.options import EngineOptions
from hangup.engine.request import Event, GenerationEnded, Progress, SubmittedRequest
from hangup.engine.tokenizer import Bpe, Tokenizer

VOCAB = 257
EOS = 256


class FakeModel:
    """Its next token depends only on the last two tokens, and it checks its cache as a real model would need it.

    Before each forward it runs `before` (a test's chance to cancel), and it notes which slots the forward was for.
    """

    def __init__(self, context: int = 64, salt: int = 0, agree: float = 1.0) -> None:
        self.name, self.vocab, self.context, self.eos, self.has_mtp = "fake", VOCAB, context, frozenset([EOS]), True
        self.tokenizer: Tokenizer = Bpe([])
        self.forwards: list[tuple[str, list[int]]] = []
        self.during: Callable[[], None] = lambda: None
        self.follow = self  # whose `during` it runs
        self._table = np.random.default_rng(salt).normal(size=(512, VOCAB)).astype(np.float32) * 3
        self._guess = np.random.default_rng(salt + 1).normal(size=(512, VOCAB)).astype(np.float32) * 3 * (1 - agree)
        self._guess += self._table * agree

    def make_cache(self, slots: int, blocks: int, block_tokens: int) -> None:
        self._cache = np.full((blocks + 1) * block_tokens, -1, np.int32)
        self._block_tokens = block_tokens
        self._states = np.full(slots, -1, np.int32)

    def forward(self, batch: Batch) -> Scores:
        self.forwards.append(("forward", batch.slots.tolist()))
        self.follow.during()
        rows, width = batch.tokens.shape
        logits = np.zeros((rows, width, VOCAB), np.float32)
        states = np.zeros((rows, width, 1), np.float32)
        for row in range(rows):
            for column in range(batch.counts[row]):
                position = batch.starts[row] + column
                self._cache[self._place(batch, row, position)] = batch.tokens[row, column]
                before = self._cache[self._place(batch, row, position - 1)] if position else 0
                assert before >= 0, "the token before was never cached"
                logits[row, column] = self._table[_key(before, batch.tokens[row, column])]
                states[row, column] = batch.tokens[row, column]
        sums = states.sum(1)
        if not batch.every:
            last = np.arange(rows), batch.counts - 1
            logits, states = logits[last][:, None], states[last][:, None]
        return NumpyScores(logits, states, lambda: sums)

    def _place(self, batch: Batch, row: int, position: int) -> int:
        block = batch.blocks[row, position // self._block_tokens]
        assert block > 0, "a real token in the scrap block"
        return int(block * self._block_tokens + position % self._block_tokens)

    def keep_states(self, scores: Scores, slots: Ints, places: Ints) -> None:
        assert isinstance(scores, NumpyScores)
        self._states[slots] = scores.states[np.arange(len(slots)), places, 0]

    def mtp(self, slots: Ints, tokens: Ints, luck: Luck) -> Ints:
        self.forwards.append(("mtp", slots.tolist()))
        self.during()
        logits: Floats = np.stack([self._guess[_key(b, t)] for b, t in zip(self._states[slots], tokens, strict=True)])
        self._states[slots] = tokens
        return choose(logits[:, None], luck)[:, 0]


def _key(before: int, token: int) -> int:
    return (int(before) * 31 + int(token) * 7) % 512


class EventRecorder:
    """A client that records its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        assert not self.ended, "an event after the end"
        self.events.append(event)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Progress))

    @property
    def ended(self) -> GenerationEnded | None:
        last = self.events[-1] if self.events else None
        return last if isinstance(last, GenerationEnded) else None


def dispatch(outbox: Outbox) -> None:
    for on_event, event in outbox:
        on_event(event)


def fake_engine(options: EngineOptions, **model: float) -> tuple[Engine, FakeModel]:
    fake = FakeModel(**model)  # type: ignore[arg-type]
    draft = FakeModel(context=fake.context) if options.spec == "draft" else None
    engine = Engine(fake, options, dispatch, draft)
    if draft is not None:
        draft.forwards = fake.forwards  # one list, in the order in which they happen
        draft.follow = fake
    return engine, fake


def submit(engine: Engine, prompt: int = 5, tokens: int = 20, **fields: object) -> tuple[Submission, EventRecorder]:
    recorded = EventRecorder()
    given: dict[str, object] = {"ignore_eos": True, "seed": 3, **fields}
    request = SubmittedRequest(prompt=tuple(range(40, 40 + prompt)), tokens_max=tokens, **given)  # type: ignore[arg-type]
    return engine.submit(request, recorded), recorded


def finish(engine: Engine, steps_max: int = 10_000) -> None:
    for _ in range(steps_max):
        if not engine.step():
            return
    raise AssertionError("the engine does not come to rest")
