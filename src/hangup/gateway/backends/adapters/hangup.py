"""hangup's own engine (`hangup engine`): it reports its calls by id and can stop one by id."""

from __future__ import annotations

from hangup.core.reaper import EngineStatus
from hangup.gateway.backends.adapters.base import Abort, EngineAdapter, Facts, Get, Seen, number


class HangupEngineAdapter(EngineAdapter):
    name = "hangup"
    order = 0
    title = "hangup's own engine (`hangup engine`)"
    apis = frozenset(["openai", "anthropic"])
    stops_by = "cancel by id, closing the connection"
    grace_s = 2.0
    poll_s = 0.05
    status_path = "/calls"
    running_metric = "hangup_engine_running"
    tokens_metric = "hangup_engine_tokens_total"
    slots_path = "/slots"
    # Completions default to 16 tokens, which a maximum would raise; messages always set their own.
    maximum_fields = {"openai.chat": "max_tokens", "openai.responses": "max_output_tokens"}
    keyed_by = "header"
    names_calls = True

    def recognises(self, models: Seen) -> bool:
        return any(row.get("owned_by") == "hangup" and "max_model_len" in row for row in models.rows)

    async def inspect(self, get: Get) -> Facts:
        models, slots = await get("/v1/models"), await get("/slots")
        context = max((number(row.get("max_model_len")) for row in models.rows), default=0)
        return Facts(slots=len(slots.rows), context=context, can_abort=True, reports_status=True)

    def abort(self, key: str) -> Abort:
        return Abort(f"/v1/cancel/{key}")

    def read_slots(self, answer: Seen) -> dict[str, int]:
        return {str(row["call"]): number(row.get("id")) for row in answer.rows if "call" in row}

    def read_status(self, answer: Seen) -> EngineStatus | None:
        table, calls = answer.table, answer.table.get("calls")
        if not isinstance(calls, dict):
            return None
        running, waiting, tokens = (number(table.get(name)) for name in ("running", "waiting", "tokens"))
        return EngineStatus(running, waiting, tokens=tokens, calls=_counts(calls), cut=_counts(table.get("cut")))


def _counts(calls: object) -> dict[str, int]:
    return {str(key): number(count) for key, count in calls.items()} if isinstance(calls, dict) else {}
