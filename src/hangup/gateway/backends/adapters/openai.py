"""Any OpenAI-compatible engine of an unknown kind: the gateway can only cut the connection."""

from __future__ import annotations

from hangup.gateway.backends.adapters.base import EngineAdapter, Facts, Get


class OpenAICompatibleAdapter(EngineAdapter):
    name = "openai"
    order = 90  # the fallback, so it comes last
    title = "any OpenAI-compatible engine"

    async def inspect(self, get: Get) -> Facts:
        return Facts(hints=("it does not report what it runs, so hangup cannot verify hang-ups; name the engine: --engine",))
