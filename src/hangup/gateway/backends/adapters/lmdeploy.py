"""LMDeploy. With `--enable-abort-handling` it stops calls by session id, a number that the gateway chooses."""

from __future__ import annotations

import hashlib

import orjson

from hangup.gateway.backends.adapters.base import Abort, EngineAdapter, Facts, Get, Json, Seen

_SESSION_BITS = 48  # which every JSON parser keeps exactly


class LmDeployAdapter(EngineAdapter):
    name = "lmdeploy"
    title = "LMDeploy"
    apis = frozenset(["openai"])
    stops_by = "abort by session id (--enable-abort-handling), closing the connection"
    lag_s = 2.0
    status_path = "/metrics"
    running_metric = "lmdeploy:num_requests_running"
    waiting_metric = "lmdeploy:num_requests_waiting"
    tokens_metric = "lmdeploy:generation_tokens_total"
    abort_first = True
    keyed_by = "body"

    def recognises(self, models: Seen) -> bool:
        return any(row.get("owned_by") == "lmdeploy" for row in models.rows)

    async def inspect(self, get: Get) -> Facts:
        metrics = await get("/metrics")
        reports_status = self.read_status(metrics) is not None
        hints = ["start lmdeploy with --enable-abort-handling; without it, lmdeploy ignores aborts by id"]
        if not reports_status:
            hints.append("start lmdeploy with --enable-metrics, so that it reports what it runs")
        return Facts(can_abort=True, reports_status=reports_status, hints=tuple(hints))

    def fields(self, key: str, slot: int | None) -> Json:
        return {"session_id": _session(key)}

    def abort(self, key: str) -> Abort:
        return Abort("/abort_request", orjson.dumps({"session_id": _session(key)}))


def _session(key: str) -> int:
    """Derive the session id from our key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[: _SESSION_BITS // 8])
