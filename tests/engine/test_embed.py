"""Embeddings in the engine: results do not depend on the batch or on chunks, and a cancel takes effect between two chunks."""

from __future__ import annotations

import numpy as np
import pytest

from engine.fakes import EventRecorder, dispatch, fake_engine, finish, submit
from hangup.engine.engine import Engine
from hangup.engine.model import Floats, Model
from hangup.engine.numpy_model import NumpyModel
from hangup.engine.options import EngineOptions
from hangup.engine.request import SubmittedRequest, Vector

TEXTS = ["ROMEO:", "JULIET:\nO Romeo, Romeo! wherefore art thou Romeo?", "A plague o' both your houses! " * 20, "ROMEO:"]


def embedded(model: Model, texts: list[str], options: EngineOptions) -> list[Floats]:
    engine = Engine(model, options, dispatch, NumpyModel() if options.spec == "draft" else None)
    recorded = [EventRecorder() for _ in texts]
    for text, each in zip(texts, recorded, strict=True):
        engine.submit(SubmittedRequest(prompt=tuple(model.tokenizer.encode(text)), tokens_max=1, embed=True), each)
    finish(engine)
    vectors = []
    for each in recorded:
        first = each.events[0]
        assert isinstance(first, Vector) and each.ended and (each.ended.reason, each.ended.tokens) == ("stop", 0)
        vectors.append(first.values)
    assert engine.scheduler.pool.free == engine.scheduler.pool.count and engine.counters.tokens == 0
    return vectors


@pytest.mark.parametrize("spec", ["off", "ngram", "mtp", "draft"])
def test_neither_company_nor_chunks_change_a_vector(spec: str) -> None:
    alone = [embedded(NumpyModel(), [text], EngineOptions(slots=1))[0] for text in TEXTS]
    together = embedded(NumpyModel(), TEXTS, EngineOptions(slots=3, prefill_tokens_max=7, spec=spec))
    for one, other in zip(alone, together, strict=True):
        assert np.allclose(one, other, atol=1e-5) and np.isclose(np.linalg.norm(one), 1, atol=1e-5)
    assert np.allclose(alone[0], alone[3]) and float(alone[0] @ alone[2]) < 0.99


@pytest.mark.parametrize("spec", ["off", "mtp", "draft"])
def test_answers_beside_embeddings_are_what_they_are_alone(spec: str) -> None:
    engine, _ = fake_engine(EngineOptions(slots=2, spec="off"))
    _, alone = submit(engine)
    finish(engine)
    engine, _ = fake_engine(EngineOptions(slots=2, spec=spec, prefill_tokens_max=4))
    _, beside = submit(engine)
    vectors = [submit(engine, prompt=30, tokens=1, embed=True)[1] for _ in range(3)]
    finish(engine)
    assert beside.text == alone.text
    assert all(isinstance(recorded.events[0], Vector) and recorded.ended for recorded in vectors)


def test_a_cancel_between_two_chunks_ends_it_there() -> None:
    engine, fake = fake_engine(EngineOptions(slots=1, prefill_tokens_max=4))
    ticket, recorded = submit(engine, prompt=40, tokens=1, embed=True)
    engine.step()
    engine.step()
    ticket.cancel()
    finish(engine)
    assert len(fake.forwards) == 2 and [type(event).__name__ for event in recorded.events] == ["GenerationEnded"]
    assert recorded.ended and recorded.ended.reason == "cancelled" and engine.counters.cancelled_running == 1
    assert engine.scheduler.pool.free == engine.scheduler.pool.count


def test_a_cancel_during_the_last_chunk_is_no_vector() -> None:
    engine, fake = fake_engine(EngineOptions(slots=1))
    ticket, recorded = submit(engine, prompt=5, tokens=1, embed=True)
    fake.during = ticket.cancel
    finish(engine)
    assert recorded.ended and recorded.ended.reason == "cancelled" and len(recorded.events) == 1
