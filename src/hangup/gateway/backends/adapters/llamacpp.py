"""llama.cpp's llama-server. It has no abort, but reports its slots in full: each call is pinned to one (`id_slot`), so that
verification is exact.

It checks a silent connection only after a second without any event, and each query of its slots is an event. Polled more often
it would never notice a hang-up, so `poll_s` must stay above one second, and the first query must not come sooner. It notices
the end of a streaming call when it writes the next token; only while such calls alone are pending may it be polled sooner.

A conversation id makes its streams outlive their client, so that header is stripped.
"""

from __future__ import annotations

from hangup.core.reaper import EngineStatus, Slot
from hangup.gateway.apis.llamacpp import LATE_TOKENS
from hangup.gateway.backends.adapters.base import EngineAdapter, Facts, Get, Json, Seen, number


class LlamaCppAdapter(EngineAdapter):
    name = "llamacpp"
    title = "llama.cpp's llama-server"
    grace_s = 3.0
    poll_s = 1.25
    quick_poll_s = 0.1
    disturbed = True
    status_path = "/slots"
    running_metric = "llamacpp:requests_processing"
    tokens_metric = "llamacpp:tokens_predicted_total"
    pins_slots = True
    apis = frozenset(["openai", "anthropic", "llamacpp"])
    # Without a maximum it generates to the end of its context; `--predict` limits every request.
    late_tokens = LATE_TOKENS
    maximum_fields = {"openai.chat": "max_tokens", "openai.completions": "max_tokens", "llamacpp.completion": "n_predict"}

    def recognises(self, models: Seen) -> bool:
        return models.server.startswith("llama.cpp") or any(row.get("owned_by") == "llamacpp" for row in models.rows)

    async def inspect(self, get: Get) -> Facts:
        props, slots = (await get("/props")).table, await get("/slots")
        status = self.read_status(slots)
        reports_status = status is not None
        context = max((number(row.get("n_ctx")) for row in slots.rows), default=0)
        return Facts(
            version=str(props.get("build_info", "")),
            slots=len(slots.rows) if reports_status else number(props.get("total_slots")),
            context=context,
            reports_status=reports_status,
            at_work=status.slots or () if status is not None else (),
            hints=()
            if reports_status
            else ("start llama-server without --no-slots: hangup needs its slots to verify hang-ups",),
        )

    def fields(self, key: str, slot: int | None) -> Json:
        return {} if slot is None else {"id_slot": slot}

    def read_status(self, answer: Seen) -> EngineStatus | None:
        rows = answer.rows
        if answer.status != 200 or not rows or not all("is_processing" in row for row in rows):
            return None
        slots = tuple(_slot(row) for row in rows)
        return EngineStatus(sum(slot.busy for slot in slots), slots=slots)


def _slot(row: Json) -> Slot:
    next_token = row.get("next_token")
    next_token = next_token[0] if isinstance(next_token, list) and next_token else next_token
    decoded = number(next_token.get("n_decoded")) if isinstance(next_token, dict) else number(row.get("n_decoded"))
    read = number(row.get("n_prompt_tokens_processed"))
    return Slot(number(row.get("id")), bool(row["is_processing"]), str(row.get("id_task", "")), decoded, read)
