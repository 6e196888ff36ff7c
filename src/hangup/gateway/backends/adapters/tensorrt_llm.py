"""TensorRT-LLM's `trtllm-serve`. It checks its connections every second, whether or not they stream."""

from __future__ import annotations

from hangup.gateway.backends.adapters.base import EngineAdapter, Facts, Get, Seen


class TensorRtLlmAdapter(EngineAdapter):
    name = "tensorrt_llm"
    title = "TensorRT-LLM (trtllm-serve)"
    apis = frozenset(["openai"])
    lag_s = 2.0
    poll_s = 0.5
    status_path = metrics_path = "/prometheus/metrics"
    running_metric = "trtllm_num_requests_running"
    waiting_metric = "trtllm_num_requests_waiting"

    def recognises(self, models: Seen) -> bool:
        return any(row.get("owned_by") == "tensorrt_llm" for row in models.rows)

    async def inspect(self, get: Get) -> Facts | None:
        version, metrics = await get("/version"), await get(self.status_path)
        reports_status = self.read_status(metrics) is not None
        hint = "start trtllm-serve with return_perf_metrics, so that it reports how many calls it runs"
        return Facts(
            version=str(version.table.get("version", "")),
            reports_status=reports_status,
            hints=() if reports_status else (hint,),
        )
