"""Speculation, batching, chunking and the cache change how long an answer takes, never the answer."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from engine.fakes import EOS, VOCAB, dispatch, fake_engine, finish, submit
from hangup.engine.engine import Engine
from hangup.engine.model import Luck, place_seeds
from hangup.engine.numpy_model import NumpyModel, _times, choose
from hangup.engine.options import EngineOptions
from hangup.engine.request import Event, Progress, SubmittedRequest
from hangup.engine.text import Writer
from hangup.engine.weights import BUILT_IN

SPECS = ["ngram", "mtp", "draft"]
PROMPT = "First Citizen:\nSpeak, speak.\n\nMENENIUS:\n"


def generate(spec: str, temperature: float, count: int, tokens: int = 60, **options: int) -> tuple[list[str], Engine]:
    """Return `count` answers of the built-in model, computed in one batch."""
    from engine.fakes import EventRecorder

    draft = NumpyModel(BUILT_IN / "draft") if spec == "draft" else None
    model = NumpyModel()
    engine = Engine(model, EngineOptions(**{"slots": 4, "spec": spec, **options}), dispatch, draft)  # type: ignore[arg-type]
    recorded = [EventRecorder() for _ in range(count)]
    for seed, each in enumerate(recorded):
        prompt = tuple(model.tokenizer.encode(PROMPT * (1 + seed % 3)))
        engine.submit(
            SubmittedRequest(
                prompt=prompt, tokens_max=tokens, temperature=temperature, top_p=0.95, seed=seed * 1000, ignore_eos=True
            ),
            each,
        )
    finish(engine)
    return [each.text for each in recorded], engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_built_in_model_says_the_same_with_and_without_speculation(temperature: float) -> None:
    plain, _ = generate("off", temperature, 6)
    for spec in SPECS:
        texts, engine = generate(spec, temperature, 6)
        assert texts == plain, spec
        if spec != "ngram":
            assert engine.counters.accepted > 0.2 * engine.counters.drafted, "the guesses are worth something"


def test_the_built_in_model_says_the_same_alone_and_in_chunks() -> None:
    plain, _ = generate("off", 1.0, 3)
    assert generate("off", 1.0, 3, slots=1)[0] == plain
    assert generate("off", 1.0, 3, prefill_tokens_max=5, block_tokens=3)[0] == plain


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("agree", [0.0, 0.5, 1.0])
def test_bad_guesses_cost_time_and_nothing_else(spec: str, agree: float) -> None:
    plain, _ = fake_engine(EngineOptions(slots=3))
    guessing, _ = fake_engine(EngineOptions(slots=3, spec=spec), agree=agree)
    for temperature in (0.0, 0.7, 1.3):
        answers = []
        for engine in (plain, guessing):
            recorded = [submit(engine, tokens=40, temperature=temperature, seed=s * 999, prompt=3 + s)[1] for s in range(4)]
            finish(engine)
            answers.append([each.text for each in recorded])
        assert answers[0] == answers[1]


@pytest.mark.parametrize("spec", ["off", *SPECS])
def test_sampled_tokens_are_distributed_as_the_model_says(spec: str) -> None:
    """Compares the second and third tokens over 4,000 seeds with the model's own probabilities (chi-squared)."""
    engine, model = fake_engine(EngineOptions(slots=16, spec=spec, waiting_max=5000), agree=0.6)
    recorded = [submit(engine, tokens=3, temperature=1.0, seed=s * 1_000_003, prompt=4, logprobs=0)[1] for s in range(4000)]
    finish(engine)
    texts = [_tokens(each.events) for each in recorded]
    first = Counter(tokens[0] for tokens in texts).most_common(1)[0][0]
    seen = Counter(tokens[1] for tokens in texts if tokens[0] == first)
    total = sum(seen.values())
    logits = model._table[(43 * 31 + first * 7) % 512].astype(np.float64)
    expected = np.exp(logits - logits.max())
    expected *= total / expected.sum()
    often = expected >= 5
    observed = np.array([seen.get(token, 0) for token in range(VOCAB)])
    chi = ((observed[often] - expected[often]) ** 2 / expected[often]).sum()
    rest = (observed[~often].sum() - expected[~often].sum()) ** 2 / expected[~often].sum()
    freedom = int(often.sum())
    assert total > 150 and freedom >= 5
    assert chi + rest < freedom + 5 * np.sqrt(2 * freedom), "five standard deviations"


def _tokens(events: list[Event]) -> list[int]:
    return [choice.token for event in events if isinstance(event, Progress) for choice in event.choices]


def test_the_race_samples_exactly() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    count = 40_000
    request_seeds, places = np.divmod(np.arange(count, dtype=np.uint64), np.uint64(200))  # 200 seeds in a row, 200 places each
    seeds = place_seeds(request_seeds, places)[:, None]
    for temperature, top_p, expected in (
        (1.0, 1.0, [0.5, 0.3, 0.15, 0.05]),
        (0.5, 1.0, [0.6849, 0.2466, 0.0616, 0.0068]),
        (1.0, 0.75, [0.625, 0.375, 0, 0]),
        (1.0, 0.4, [1, 0, 0, 0]),
    ):
        luck = Luck(np.full(count, temperature, np.float32), np.full(count, top_p, np.float32), seeds)
        chosen = choose(np.broadcast_to(logits, (count, 1, 4)), luck)
        assert np.allclose(np.bincount(chosen[:, 0], minlength=4) / count, expected, atol=0.011)


def test_the_end_of_sequence_ends_unless_ignored() -> None:
    engine, model = fake_engine(EngineOptions(slots=2))
    model._table[:, EOS] = 100.0
    _, stopped = submit(engine, ignore_eos=False)
    _, ignored = submit(engine, ignore_eos=True, tokens=4)
    finish(engine)
    assert stopped.ended is not None and (stopped.ended.reason, stopped.ended.tokens) == ("stop", 0)
    assert ignored.ended is not None and (ignored.ended.reason, ignored.text) == ("length", "\n\n" * 4)


@pytest.mark.parametrize("spec", ["off", *SPECS])
def test_a_stop_string_is_not_shown_nor_is_anything_behind_it(spec: str) -> None:
    engine, _ = fake_engine(EngineOptions(slots=1, spec=spec))
    _, whole = submit(engine, tokens=30)
    finish(engine)
    stop = whole.text[9:12]
    cut = whole.text.index(stop)
    _, recorded = submit(engine, tokens=30, stop=("never said", stop))
    finish(engine)
    assert recorded.text == whole.text[:cut]
    assert recorded.ended is not None and recorded.ended.reason == "stop"


def test_text_that_could_become_a_stop_string_is_held_back_and_flushed() -> None:
    tokenizer = NumpyModel().tokenizer
    writer = Writer(tokenizer.decoder(), ("END",))
    assert [writer.push(ord(c)) for c in "aENxEN"] == ["a", "", "", "ENx", "", ""]
    assert writer.flush() == "EN"


def test_characters_are_never_cut() -> None:
    tokenizer = NumpyModel().tokenizer
    for text in ("héllo wörld 漢字 🎭\n\n\n\ttail  ", "ROMEO:\nWhat, ho!\n\nNurse:\n"):
        decoder = tokenizer.decoder()
        assert "".join(decoder.push(token) for token in tokenizer.encode(text)) == text


def test_log_probabilities_are_those_of_the_model() -> None:
    engine, model = fake_engine(EngineOptions(slots=1))
    _, recorded = submit(engine, prompt=4, tokens=1, logprobs=3)
    finish(engine)
    (event,) = [e for e in recorded.events if isinstance(e, Progress)]
    (choice,) = event.choices
    logits = model._table[(42 * 31 + 43 * 7) % 512].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum())
    assert choice.logprob == pytest.approx(expected[choice.token], abs=1e-4)
    assert [token for token, _ in choice.top] == np.argsort(-expected)[:3].tolist()


def test_no_token_has_a_time_of_zero() -> None:
    """With the seed whose hash is the highest, a token would win against all others, even with a probability of zero."""
    times = _times(np.array([[857579651]], dtype=np.uint32), 4)
    assert (times > 0).all() and times[0, 0, 0] < 1e-6
