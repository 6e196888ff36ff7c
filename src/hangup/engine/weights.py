"""Reads model directories that hold a Llama: config.json and safetensors, under Hugging Face's names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hangup.engine.model import Floats
from hangup.errors import ConfigError

BUILT_IN = Path(__file__).parent / "builtin"
_DTYPES: dict[str, np.dtype[Any]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4")}


@dataclass(frozen=True, slots=True)
class ModelShape:
    vocab: int
    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    context: int
    epsilon: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    tied: bool
    eos: frozenset[int]

    @classmethod
    def load(cls, folder: Path) -> ModelShape:
        try:
            config = json.loads((folder / "config.json").read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError([f"model: cannot read {folder}: {error}"]) from None
        return cls.of(config)

    @classmethod
    def of(cls, config: dict[str, Any]) -> ModelShape:
        if config.get("model_type") != "llama":
            raise ConfigError([f"model: unsupported architecture {config.get('model_type')!r}; only Llama is supported"])
        eos = config.get("eos_token_id")
        rope = config.get("rope_parameters") or {}  # newer configs keep rope_theta and rope_scaling here
        return cls(
            vocab=config["vocab_size"],
            width=config["hidden_size"],
            inner=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_size=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            context=config["max_position_embeddings"],
            epsilon=config["rms_norm_eps"],
            rope_theta=config.get("rope_theta") or rope.get("rope_theta", 10000.0),
            rope_scaling=config.get("rope_scaling") or (rope if rope.get("rope_type", "default") != "default" else None),
            tied=config.get("tie_word_embeddings", False),
            eos=frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos]),
        )

    def angles(self) -> Floats:
        """Return the rotary embedding's angles, [context, head_size / 2]."""
        frequencies = self.rope_theta ** (-np.arange(0, self.head_size, 2) / self.head_size)
        if self.rope_scaling is not None:
            frequencies = _llama3(frequencies, self.rope_scaling)
        return np.outer(np.arange(self.context), frequencies).astype(np.float32)


def _llama3(frequencies: np.ndarray[Any, Any], scaling: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Scale for Llama 3's long context: lower the low frequencies, keep the high ones, and interpolate between them."""
    if scaling.get("rope_type", scaling.get("type")) != "llama3":
        raise ConfigError([f"model: rope_scaling {scaling.get('rope_type', scaling.get('type'))!r} is not supported"])
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    ramp = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(frequencies * (ramp + (1 - ramp) / scaling["factor"]))


def read_safetensors(path: Path) -> dict[str, Floats]:
    """Return all tensors of a file, as float32."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        raw = np.frombuffer(data[8 + size + start : 8 + size + end], _DTYPES[entry["dtype"]])
        tensors[name] = raw.reshape(entry["shape"]).astype(np.float32)
    return tensors
