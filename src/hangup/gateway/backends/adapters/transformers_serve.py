"""`transformers serve`. A closed stream stops at once; an answer that does not stream runs to its end, which is one more reason
for the gateway to stream every answer. It does not report what it runs."""

from __future__ import annotations

from hangup.gateway.backends.adapters.base import EngineAdapter, Facts, Get


class TransformersServeAdapter(EngineAdapter):
    name = "transformers"
    title = "transformers serve"
    inspect_unknown = True
    apis = frozenset(["openai"])
    stops_by = "closing a streaming connection"

    async def inspect(self, get: Get) -> Facts | None:
        paths = (await get("/openapi.json")).table.get("paths")
        if not isinstance(paths, dict) or "/load_model" not in paths or "/v1/chat/completions" not in paths:
            return None
        return Facts(hints=("transformers serve does not report what it runs, so hangup cannot verify a hang-up",))
