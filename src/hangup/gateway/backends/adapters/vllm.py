"""vLLM. Closing the connection stops a call within one step; it only accepts aborts by id in its development mode.

Our key reaches it in the header X-Request-Id, from which vLLM derives its own id of the call. An empty list of ids would abort
everything, so an abort never has one.
"""

from __future__ import annotations

import orjson

from hangup.core.reaper import EngineStatus
from hangup.gateway.backends.adapters.base import Abort, EngineAdapter, Facts, Get, Json, Seen, counted, label, number

_METHOD_NOT_ALLOWED = 405
# vLLM includes these fields in a whole answer, and omits them from the events of a stream.
_NULL_IN_ANSWER = (
    "service_tier",
    "system_fingerprint",
    "prompt_logprobs",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
)
_NULL_IN_CHOICE = ("logprobs", "stop_reason", "token_ids", "routed_experts")
_NULL_IN_USAGE = ("prompt_tokens_details", "completion_tokens_details")
_NULL_IN_MESSAGE = ("refusal", "annotations", "audio", "function_call", "reasoning")


class VllmAdapter(EngineAdapter):
    name = "vllm"
    title = "vLLM"
    stops_by = "closing the connection; abort by id in development mode"
    grace_s = 2.0
    lag_s = 6.0
    counts_steps = True
    status_path = "/metrics"
    running_metric = "vllm:num_requests_running"
    waiting_metric = "vllm:num_requests_waiting"
    tokens_metric = "vllm:generation_tokens_total"
    abort_first = True
    apis = frozenset(["openai", "anthropic"])
    keyed_by = "header"

    def recognises(self, models: Seen) -> bool:
        return any(row.get("owned_by") == "vllm" for row in models.rows)

    async def inspect(self, get: Get) -> Facts:
        version, models, metrics = await get("/version"), await get("/v1/models"), await get("/metrics")
        # GET on a path that takes POST is answered 405; it aborts nothing.
        can_abort = (await get("/abort_requests")).status == _METHOD_NOT_ALLOWED
        blocks = number(label(metrics.body, "vllm:cache_config_info", "num_gpu_blocks"))
        size = number(label(metrics.body, "vllm:cache_config_info", "block_size"))
        return Facts(
            version=str(version.table.get("version", "")),
            context=max((number(row.get("max_model_len")) for row in models.rows), default=0),
            kv_tokens=blocks * size,
            can_abort=can_abort,
            reports_status=self.read_status(metrics) is not None,
            hints=() if can_abort else ("start vLLM with VLLM_SERVER_DEV_MODE=1, on a private address, to allow abort by id",),
        )

    def lists_all(self, rows: list[Json]) -> bool:
        # vLLM answers 404 to a name that it does not list. Its rows have the model's root; a server that claims to be vLLM
        # without it is something else, and may not be as strict.
        return bool(rows) and all("root" in row for row in rows)

    def abort(self, key: str) -> Abort:
        assert key, "an empty list of ids would abort every call"
        return Abort("/abort_requests", orjson.dumps({"request_ids": [f"chatcmpl-{key}", f"cmpl-{key}-0"]}))

    def complete(self, answer: Json) -> None:
        if answer.get("object") != "chat.completion":
            return
        for name in _NULL_IN_ANSWER:
            answer.setdefault(name, None)
        for name in _NULL_IN_USAGE if isinstance(answer.get("usage"), dict) else ():
            answer["usage"].setdefault(name, None)
        for choice in answer["choices"]:
            for name in _NULL_IN_CHOICE:
                choice.setdefault(name, None)
            for name in _NULL_IN_MESSAGE:
                choice["message"].setdefault(name, None)

    def read_status(self, answer: Seen) -> EngineStatus | None:
        return counted(answer, self.running_metric, self.waiting_metric, self.tokens_metric)
