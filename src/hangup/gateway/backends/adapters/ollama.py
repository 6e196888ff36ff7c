"""Ollama. Closing the connection cancels the call in its runner. It does not report what it runs, only which models are loaded.
Unloading a model would end everybody's calls, so that is for the operator to do."""

from __future__ import annotations

from hangup.gateway.backends.adapters.base import EngineAdapter, Facts, Get, Json, Seen


class OllamaAdapter(EngineAdapter):
    name = "ollama"
    title = "Ollama"
    inspect_unknown = True
    folds_keys = True
    apis = frozenset(["openai", "anthropic", "ollama"])

    def recognises(self, models: Seen) -> bool:
        return any(row.get("owned_by") == "library" for row in models.rows)

    async def inspect(self, get: Get) -> Facts | None:
        version = (await get("/api/version")).table
        if "version" not in version or (await get("/api/ps")).status != 200:
            return None
        hint = "Ollama does not report what it runs: to verify hang-ups, run llama-server instead"
        return Facts(version=str(version["version"]), hints=(hint,))

    def model_names(self, row: Json) -> tuple[str, ...]:
        name = str(row["id"])
        return (name, name.removesuffix(":latest"))
