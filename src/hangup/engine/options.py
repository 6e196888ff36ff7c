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
    model: str = _option("", "directory of a Llama with safetensors (needs hangup[torch]); the built-in model if not given")
    device: str = _option("auto", "where a model from a directory runs: auto, cpu, cuda, cuda:1, …")
    slots: int = _option(8, "calls that are computed together", least=1)
    waiting_max: int = _option(32, "calls that may wait for a slot; more are answered 503")
    context_max: int = _option(8192, "most tokens of a prompt and its answer; a model's own context may be shorter", least=2)
    spec: str = _option("off", f"speculation: {', '.join(SPECS)}")
    draft_model: str = _option("", "directory of the model for --spec draft; the built-in model has one")
    draft_tokens_max: int = _option(3, "guesses per verification", least=1)
    block_tokens: int = _option(32, "tokens per block of the KV cache", least=1)
    blocks: int = _option(0, "blocks in the KV cache; 0 is enough for a full context in every slot")
    prefill_tokens_max: int = _option(256, "prompt tokens read in one forward", least=1)

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
