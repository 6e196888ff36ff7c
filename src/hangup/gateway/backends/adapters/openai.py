"""Any OpenAI-compatible engine of which nothing more is known: cutting the connection is all that can be done."""

from __future__ import annotations

from hangup.gateway.backends.adapters.base import EngineAdapter, Facts, Get


class OpenAICompatibleAdapter(EngineAdapter):
    name = "openai"
    order = 90  # whatever is nothing else
    title = "any OpenAI-compatible engine"

    async def inspect(self, get: Get) -> Facts:
        return Facts(hints=("it does not say what it runs, so a hang-up cannot be verified: name the engine with --engine",))
