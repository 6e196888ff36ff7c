"""Imitates other engines on the wire, including their faults: `hangup standin --like sglang`.

A profile defines how the engine identifies itself, which pages report what it runs, how it accepts an abort, and how it
notices that a client has hung up. The generation itself stays the fake engine's own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from hangup.fake_engine.engine import FakeEngine, FakeWork

Page = tuple[int, bytes, bytes]  # status, content type, body
_JSON, _TEXT = b"application/json", b"text/plain; version=0.0.4"


class EngineProfile:
    """The default profile: the fake engine as itself."""

    name = ""
    server = "hangup-standin"
    owner = "hangup"
    id_field = ""  # the body field with the call's id, used instead of the header
    id_prefix = ""  # of the id in the header X-Generation-Id; empty: there is no such header
    connection_poll_s = 0.0  # how often it checks its connections; 0: it notices a hangup at once

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        """Return the answer to a GET of one of the engine's own pages."""
        if path == "/version":
            return _json({"version": "0.0-standin"})
        if path != "/metrics":
            return None
        stats = engine.stats()
        names = {"tokens_total": "tokens", "running": "running", "waiting": "waiting"}
        return _text(*(f"standin_{name} {stats[count]}" for name, count in names.items()))

    def answers(self, path: str, engine: FakeEngine) -> bool:
        """Return whether the engine answers a request for one of its pages at all."""
        return not engine.behaviour.status_hangs

    def usage(self, id: str, engine: FakeEngine) -> Page | None:
        """Return the answer to a GET of one call's usage."""
        return None

    def abort(self, path: str, value: Any, engine: FakeEngine) -> Page | None:
        """Carry out a POST that aborts, and return its answer."""
        return None

    def client_left(self, engine: FakeEngine, work: FakeWork, streaming: bool) -> None:
        if self.connection_poll_s:
            work.client_gone = True
            asyncio.get_running_loop().call_later(self.connection_poll_s, engine.client_gone, work)
        else:
            engine.client_gone(work)


class OpenAIProfile(EngineProfile):
    """An engine or hosted API that reports nothing about itself."""

    name = "openai"
    server = "uvicorn"
    owner = "organization-owner"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        return None


class OpenRouterProfile(OpenAIProfile):
    """A hosted API that reports nothing but the usage of single calls, afterwards: GET /v1/generation?id=…"""

    name = "openrouter"
    server = "cloudflare"
    id_prefix = "gen-"

    def usage(self, id: str, engine: FakeEngine) -> Page | None:
        past = next((past for past in engine.past if self.id_prefix + past.id == id), None)
        if past is None:
            return 404, _JSON, b'{"error":{"message":"Generation not found","code":404}}'
        counts = {"tokens_completion": past.tokens, "native_tokens_completion": past.tokens}
        return _json({"data": {"id": id, "cancelled": past.ended == "aborted", "streamed": True, **counts}})


class VllmProfile(EngineProfile):
    name = "vllm"
    server = "uvicorn"
    owner = "vllm"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        if path == "/version":
            return _json({"version": "0.0-standin"})
        if path == "/abort_requests":
            return 405, _JSON, b'{"detail":"Method Not Allowed"}'
        if path != "/metrics":
            return None
        now = engine.reported()
        labels = '{engine="0",model_name="standin"}'
        return _text(
            f"vllm:num_requests_running{labels} {now.running}.0",
            f"vllm:num_requests_waiting{labels} {now.waiting}.0",
            f"vllm:generation_tokens_total{labels} {now.tokens}.0",
            f"vllm:kv_cache_usage_perc{labels} {engine.cache_used():.6f}",
            f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{engine.behaviour.cache_tokens // 16}"}} 1.0',
        )

    def abort(self, path: str, value: Any, engine: FakeEngine) -> Page | None:
        if path != "/abort_requests":
            return None
        ids = value["request_ids"] or [f"chatcmpl-{work.id}" for work in (*engine.running, *engine.waiting)]  # vLLM's fault
        for id in ids:
            engine.abort(id.removeprefix("chatcmpl-").removeprefix("cmpl-"))
        return 200, _JSON, b""


class SglangProfile(EngineProfile):
    """SGLang: matches ids by prefix, always answers an abort with 200, and ignores it once the connection is gone.

    Losing the connection does not by itself end a stream.
    """

    name = "sglang"
    server = "uvicorn"
    owner = "sglang"
    id_field = "rid"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        now = engine.reported()
        if path == "/server_info":
            return _json({"version": "0.5.18", "max_running_requests": engine.behaviour.slots, "context_length": 8192})
        if path == "/v1/loads":
            return _json({"loads": [{"num_running_reqs": now.running, "num_waiting_reqs": now.waiting, "dp_rank": 0}]})
        return None

    def abort(self, path: str, value: Any, engine: FakeEngine) -> Page | None:
        if path != "/abort_request":
            return None
        engine.counters.abort_requests += 1
        for work in [*engine.running, *engine.waiting]:
            if work.id.startswith(value["rid"]) and not work.client_gone:
                engine.abort(work.id)
        return 200, _JSON, b""

    def client_left(self, engine: FakeEngine, work: FakeWork, streaming: bool) -> None:
        work.client_gone = True


class TgiProfile(EngineProfile):
    name = "tgi"
    server = ""
    owner = "standin/model"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        now = engine.reported()
        if path == "/info":
            info = {"router": "text-generation-router", "version": "3.3.7", "max_total_tokens": 4096, "max_batch_size": None}
            return _json(info | {"max_concurrent_requests": 128})
        if path == "/metrics":
            return _text(f"tgi_batch_current_size {now.running}", f"tgi_queue_size {now.waiting}")
        return None


class LlamaCppProfile(EngineProfile):
    """llama.cpp: checks a silent connection only after a second without activity. A status request counts as activity.

    Status requests wait in the same queue as cancels, which it reads between two steps: a draft loop that never ends answers
    neither, while other threads go on saying that the server is healthy.
    """

    name = "llamacpp"
    server = "llama.cpp"
    owner = "llamacpp"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        if path == "/props":
            return _json({"total_slots": engine.behaviour.slots, "build_info": "b0-standin"})
        if path not in ("/slots", "/metrics"):
            return None
        engine.last_activity_at = asyncio.get_running_loop().time()
        if path == "/metrics":
            now = engine.reported()
            return _text(f"llamacpp:tokens_predicted_total {now.tokens}", f"llamacpp:requests_processing {now.running}")
        work_of_slot = {work.slot: work for work in engine.running}
        speculative = engine.behaviour.draft > 0
        return _json([_slot_row(id, work_of_slot.get(id), speculative) for id in range(engine.behaviour.slots)])

    def answers(self, path: str, engine: FakeEngine) -> bool:
        queued = path in ("/slots", "/metrics")
        return super().answers(path, engine) and not (queued and engine.wedged and engine.behaviour.draft)

    def client_left(self, engine: FakeEngine, work: FakeWork, streaming: bool) -> None:
        if streaming and work.computed:
            engine.client_gone(work)
            return
        work.client_gone = True
        self._check_connection(engine, work)

    def _check_connection(self, engine: FakeEngine, work: FakeWork) -> None:
        loop = asyncio.get_running_loop()
        if work.ended:
            return
        idle_s = loop.time() - engine.last_activity_at
        if idle_s >= 1.0:
            engine.client_gone(work)
        else:
            loop.call_later(1.0 - idle_s, self._check_connection, engine, work)


class OllamaProfile(EngineProfile):
    name = "ollama"
    server = ""
    owner = "library"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        if path == "/api/version":
            return _json({"version": "0.33.0"})
        return _json({"models": [{"name": "standin", "model": "standin"}]}) if path == "/api/ps" else None


class TensorRtProfile(EngineProfile):
    name = "tensorrt_llm"
    server = "uvicorn"
    owner = "tensorrt_llm"
    connection_poll_s = 1.0

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        now = engine.reported()
        if path == "/version":
            return _json({"version": "1.2.0"})
        if path != "/prometheus/metrics":
            return None
        return _text(f"trtllm_num_requests_running {now.running}.0", f"trtllm_num_requests_waiting {now.waiting}.0")


class LmDeployProfile(EngineProfile):
    """LMDeploy: checks the connection of a whole answer when a token arrives; aborts by session id."""

    name = "lmdeploy"
    server = "uvicorn"
    owner = "lmdeploy"
    id_field = "session_id"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        now = engine.reported()
        if path != "/metrics":
            return None
        return _text(f"lmdeploy:num_requests_running {now.running}.0", f"lmdeploy:num_requests_waiting {now.waiting}.0")

    def abort(self, path: str, value: Any, engine: FakeEngine) -> Page | None:
        if path != "/abort_request":
            return None
        engine.abort(str(value["session_id"]))
        return _json({"status": "success"})


PROFILES: dict[str, EngineProfile] = {
    profile.name: profile
    for profile in (
        EngineProfile(),
        OpenAIProfile(),
        OpenRouterProfile(),
        VllmProfile(),
        SglangProfile(),
        TgiProfile(),
        LlamaCppProfile(),
        OllamaProfile(),
        TensorRtProfile(),
        LmDeployProfile(),
    )
}


def _json(value: Any) -> Page:
    return 200, _JSON, orjson.dumps(value)


def _text(*lines: str) -> Page:
    return 200, _TEXT, "\n".join((*lines, "")).encode()


def _slot_row(id: int, work: FakeWork | None, speculative: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"id": id, "n_ctx": 4096, "speculative": speculative, "is_processing": work is not None}
    if work is not None:
        read = 0 if work.prefill_remaining_s > 0 else work.prompt_tokens
        row |= {"id_task": work.task, "n_prompt_tokens_processed": read, "next_token": [{"n_decoded": work.computed}]}
    return row
