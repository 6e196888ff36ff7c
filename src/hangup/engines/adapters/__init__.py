"""One small file per kind of engine; this is their list. Those that are recognised by less come later."""

from __future__ import annotations

from hangup.engines.adapters.base import Abort, Adapter, Facts, Get, Seen
from hangup.engines.adapters.hangup import HangupEngine
from hangup.engines.adapters.hosted import AnthropicHosted, OpenAIHosted
from hangup.engines.adapters.llamacpp import LlamaCpp
from hangup.engines.adapters.lmdeploy import LmDeploy
from hangup.engines.adapters.ollama import Ollama
from hangup.engines.adapters.openai import OpenAICompatible
from hangup.engines.adapters.sglang import Sglang
from hangup.engines.adapters.standin import StandIn
from hangup.engines.adapters.tensorrt_llm import TensorRtLlm
from hangup.engines.adapters.tgi import Tgi
from hangup.engines.adapters.transformers_serve import TransformersServe
from hangup.engines.adapters.vllm import Vllm

GENERIC: Adapter = OpenAICompatible()
_KNOWN = (
    HangupEngine(),
    StandIn(),
    Vllm(),
    Sglang(),
    LlamaCpp(),
    TensorRtLlm(),
    LmDeploy(),
    Ollama(),
    Tgi(),
    TransformersServe(),
    OpenAIHosted(),
    AnthropicHosted(),
    GENERIC,
)
ADAPTERS: dict[str, Adapter] = {adapter.name: adapter for adapter in _KNOWN}
AUTO = "auto"  # ask the backend what it is
_UNSURE = ("tgi", "transformers", "ollama")  # told apart by their own pages, not by their list of models


def hosted(host: str) -> Adapter | None:
    """A provider is known by its address."""
    names = {".openai.com": "openai-hosted", ".anthropic.com": "anthropic-hosted"}
    return next((ADAPTERS[name] for ending, name in names.items() if host.endswith(ending)), None)


async def recognise(host: str, get: Get) -> tuple[Adapter, Facts]:
    """What a backend is and what it can do, asked with GET alone; the generic kind if nothing fits."""
    found = hosted(host)
    if found is not None:
        return found, await found.inspect(get) or Facts()
    models = await get("/v1/models")
    sure = [adapter for adapter in ADAPTERS.values() if adapter.recognises(models)]
    for adapter in sure[:1] or [ADAPTERS[name] for name in _UNSURE]:
        facts = await adapter.inspect(get)
        if facts is not None:
            return adapter, facts
    return GENERIC, await GENERIC.inspect(get) or Facts()


__all__ = ["ADAPTERS", "AUTO", "GENERIC", "Abort", "Adapter", "Facts", "Get", "Seen", "hosted", "recognise"]
