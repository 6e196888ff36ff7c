"""Text Generation Inference. It notices a closed connection after each step, and drops a queued call only when that reaches the
head of its queue."""

from __future__ import annotations

from hangup.gateway.backends.adapters.base import EngineAdapter, Facts, Get, number


class TgiAdapter(EngineAdapter):
    name = "tgi"
    title = "Text Generation Inference"
    inspect_unknown = True
    lag_s = 1.0
    status_path = "/metrics"
    running_metric = "tgi_batch_current_size"
    waiting_metric = "tgi_queue_size"
    tokens_metric = "tgi_request_generated_tokens_sum"
    apis = frozenset(["openai", "tgi"])

    async def inspect(self, get: Get) -> Facts | None:
        table, metrics = (await get("/info")).table, await get("/metrics")
        if "router" not in table and "max_concurrent_requests" not in table:
            return None
        return Facts(
            version=str(table.get("version", "")),
            slots=number(table.get("max_batch_size")),
            context=number(table.get("max_total_tokens")),
            kv_tokens=number(table.get("max_batch_total_tokens")),
            reports_status=self.read_status(metrics) is not None,
        )
