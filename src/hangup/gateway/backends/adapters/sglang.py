"""SGLang. It stops calls by `rid`, and answers 200 whether or not it knows the id.

It matches ids by prefix, so the gateway never attaches the client's own id: our key has a fixed length and cannot be guessed,
so it is the prefix of no other. The abort must arrive while the connection is open, because SGLang forgets the id when it
closes.
"""

from __future__ import annotations

import orjson

from hangup.core.reaper import EngineStatus
from hangup.gateway.backends.adapters.base import Abort, EngineAdapter, Facts, Get, Json, Seen, number


def _texts_in_pieces(table: Json) -> bool | None:
    """Decide from the server's arguments, all of which it reports. The older flag only concerns token ids: with it, each event
    has all the text so far."""
    said = table.get("incremental_streaming_output")
    if type(said) is bool:
        return said
    return False if type(table.get("stream_output")) is bool else None


class SglangAdapter(EngineAdapter):
    name = "sglang"
    title = "SGLang"
    stops_by = "abort by id, closing the connection"
    grace_s = 6.0
    poll_s = 0.5
    status_path = "/v1/loads?include=core,queues"
    running_metric = "sglang:num_running_reqs"
    tokens_metric = "sglang:generation_tokens_total"
    abort_first = True
    apis = frozenset(["openai", "anthropic", "ollama", "sglang"])
    tagged_models = True  # base:adapter
    keyed_by = "body"

    def recognises(self, models: Seen) -> bool:
        return any(row.get("owned_by") == "sglang" for row in models.rows)

    async def inspect(self, get: Get) -> Facts:
        info, loads = await get("/server_info"), await get(self.status_path)
        table = info.table
        reports_status = self.read_status(loads) is not None
        return Facts(
            version=str(table.get("version", "")),
            slots=number(table.get("max_running_requests")),
            context=number(table.get("context_length")),
            kv_tokens=number(table.get("max_total_num_tokens")),
            can_abort=True,
            reports_status=reports_status,
            texts_in_pieces=_texts_in_pieces(table),
            hints=() if reports_status else ("this SGLang has no /v1/loads, so hangup cannot verify hang-ups; upgrade SGLang",),
        )

    def fields(self, key: str, slot: int | None) -> Json:
        return {"rid": key}

    def abort(self, key: str) -> Abort:
        assert key, "an empty id is the prefix of all"
        return Abort("/abort_request", orjson.dumps({"rid": key}))

    def read_status(self, answer: Seen) -> EngineStatus | None:
        table = answer.table
        rows = table.get("loads") or table.get("data") or [table]
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "num_running_reqs" in row for row in rows):
            return None
        running = sum(number(row["num_running_reqs"]) for row in rows)
        return EngineStatus(running, sum(number(row.get("num_waiting_reqs")) for row in rows))
