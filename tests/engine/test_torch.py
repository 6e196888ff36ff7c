"""The torch model gives the numpy model's answers, on the same weights. Skipped if `hangup[torch]` is not installed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engine.fakes import EventRecorder, dispatch, finish
from engine.test_embed import TEXTS, embedded
from hangup.engine.engine import Engine
from hangup.engine.model import Model
from hangup.engine.numpy_model import NumpyModel
from hangup.engine.options import EngineOptions
from hangup.engine.request import SubmittedRequest
from hangup.engine.weights import BUILT_IN, ModelShape

pytest.importorskip("torch")
from hangup.engine.torch_model import TorchModel


def answers(model: Model, spec: str, temperature: float) -> list[str]:
    engine = Engine(model, EngineOptions(slots=3, spec=spec), dispatch)
    recorded = [EventRecorder() for _ in range(4)]
    for seed, each in enumerate(recorded):
        prompt = tuple(model.tokenizer.encode("ROMEO:\nWhat, ho!\n\n" * (seed + 1)))
        engine.submit(
            SubmittedRequest(prompt=prompt, tokens_max=30, temperature=temperature, top_p=0.9, seed=seed, ignore_eos=True), each
        )
    finish(engine)
    return [each.text for each in recorded]


@pytest.mark.parametrize("spec", ["off", "ngram", "mtp"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_torch_says_what_numpy_says(spec: str, temperature: float) -> None:
    assert answers(TorchModel.load(BUILT_IN, "cpu"), spec, temperature) == answers(NumpyModel(), "off", temperature)


def test_a_directory_with_a_tokenizer_and_a_chat_template(tmp_path: Path) -> None:
    """Models from the hub have a tokenizer.json, a Jinja template, and weights as safetensors."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = {word: index for index, word in enumerate(["<s>", "</s>", "<unk>", "Ġhello", "Ġworld", "Ġuser", "Ġbot", *"abc"])}
    loaded = Tokenizer(models.WordLevel(words, "<unk>"))
    loaded.pre_tokenizer = pre_tokenizers.ByteLevel()
    loaded.decoder = decoders.ByteLevel()
    loaded.save(str(tmp_path / "tokenizer.json"))
    template = "{% for m in messages %} {{ m.role }} {{ m.content }}{% endfor %}{% if add_generation_prompt %} bot{% endif %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "bos_token": {"content": "<s>"}}))
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((BUILT_IN / name).read_bytes())
    model = TorchModel.load(tmp_path, "cpu")
    prompt = model.tokenizer.encode(model.tokenizer.chat([("user", "hello world")]))
    assert [model.tokenizer.token_text(token) for token in prompt] == [" user", " hello", " world", " bot"]
    decoder = model.tokenizer.decoder()
    assert "".join(decoder.push(token) for token in prompt) == " user hello world bot"


def test_llama_3_frequencies_are_those_of_the_reference(tmp_path: Path) -> None:
    modeling = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = json.loads((BUILT_IN / "config.json").read_bytes()) | {
        "rope_scaling": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "rope_theta": 500000.0,
    }
    frequencies, _ = modeling.ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**config), "cpu")
    assert np.allclose(ModelShape.of(config).angles()[1], frequencies.numpy(), rtol=1e-5)


def test_torch_embeds_as_numpy_does() -> None:
    for options in (EngineOptions(slots=3), EngineOptions(slots=2, prefill_tokens_max=7)):
        for one, other in zip(
            embedded(TorchModel.load(BUILT_IN, "cpu"), TEXTS, options), embedded(NumpyModel(), TEXTS, options), strict=True
        ):
            assert np.allclose(one, other, atol=1e-4)
