"""The engine's options. Every field is a flag of `hangup engine`; the `doc` in its metadata is the flag's help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hangup.errors import ConfigError

SPECS = ("off", "ngram", "mtp", "draft")


def _option(default: Any, doc: str, least: int = 0) -> Any:
    return field(default=default, metadata={"doc": doc, "least": least})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    model: str = _option("", "directory of a Llama model with safetensors (needs hangup[torch]); empty: the built-in model")
    device: str = _option("auto", "device for a model from a directory: auto, cpu, cuda, cuda:1, …")
    slots: int = _option(8, "calls computed at the same time", least=1)
    waiting_max: int = _option(32, "calls that may wait for a slot; further calls get a 503")
    context_max: int = _option(8192, "maximum tokens of a prompt and its answer; the model's context may be smaller", least=2)
    spec: str = _option("off", f"speculative decoding: {', '.join(SPECS)}")
    draft_model: str = _option("", "directory of the draft model for --spec draft; the built-in model has its own")
    draft_tokens_max: int = _option(3, "drafted tokens per verification", least=1)
    block_tokens: int = _option(32, "tokens per block of the KV cache", least=1)
    blocks: int = _option(0, "blocks in the KV cache; 0 means enough for a full context in every slot")
    prefill_tokens_max: int = _option(256, "prompt tokens per forward pass", least=1)

    def __post_init__(self) -> None:
        problems = []
        if self.spec not in SPECS:
            problems.append(f"spec: {self.spec!r} is not one of {', '.join(SPECS)}")
        for name in ("slots", "waiting_max", "context_max", "draft_tokens_max", "block_tokens", "blocks", "prefill_tokens_max"):
            least = self.__dataclass_fields__[name].metadata["least"]
            if getattr(self, name) < least:
                problems.append(f"{name}: must be at least {least}")
        if problems:
            raise ConfigError(problems)
