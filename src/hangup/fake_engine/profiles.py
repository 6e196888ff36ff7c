"""What other engines look like on the wire, with the faults that they have: `hangup standin --like sglang`.

A likeness says how the engine introduces itself, which pages tell what it runs, how it is told to abort, and how it hears
that a client has left. The generation itself stays the stand-in's own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from hangup.fake_engine.engine import FakeEngine, FakeWork

Page = tuple[int, bytes, bytes]  # status, content type, body
_JSON, _TEXT = b"application/json", b"text/plain; version=0.0.4"


class EngineProfile:
    """The stand-in as itself."""

    name = ""
    server = "hangup-standin"
    owner = "hangup"
    id_field = ""  # of the body: the call's id, in place of the header's
    polls_s = 0.0  # how often it looks after its connections; 0: it hears at once

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        """The answer to a GET of the engine's own."""
        if path == "/version":
            return _json({"version": "0.0-standin"})
        if path != "/metrics":
            return None
        stats = engine.stats()
        return _text(f"standin_tokens_total {stats['tokens']}", f"standin_running {stats['running']}")

    def abort(self, path: str, value: Any, engine: FakeEngine) -> Page | None:
        """The answer to a POST that aborts."""
        return None

    def client_left(self, engine: FakeEngine, work: FakeWork, streaming: bool) -> None:
        if self.polls_s:
            work.gone = True
            asyncio.get_running_loop().call_later(self.polls_s, engine.client_gone, work)
        else:
            engine.client_gone(work)


class OpenAIProfile(EngineProfile):
    """Any engine or hosted API that says nothing of itself."""

    name = "openai"
    server = "uvicorn"
    owner = "organization-owner"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        return None


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
        now = engine.shown()
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
        ids = value["request_ids"] or [f"chatcmpl-{work.id}" for work in (*engine.running, *engine.waiting)]  # its fault
        for id in ids:
            engine.abort(id.removeprefix("chatcmpl-").removeprefix("cmpl-"))
        return 200, _JSON, b""


class SglangProfile(EngineProfile):
    """Ids match by prefix, an abort is always answered with 200, and is ignored once the connection is gone, which by itself
    does not end a stream."""

    name = "sglang"
    server = "uvicorn"
    owner = "sglang"
    id_field = "rid"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        now = engine.shown()
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
            if work.id.startswith(value["rid"]) and not work.gone:
                engine.abort(work.id)
        return 200, _JSON, b""

    def client_left(self, engine: FakeEngine, work: FakeWork, streaming: bool) -> None:
        work.gone = True


class TgiProfile(EngineProfile):
    name = "tgi"
    server = ""
    owner = "standin/model"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        now = engine.shown()
        if path == "/info":
            told = {"router": "text-generation-router", "version": "3.3.7", "max_total_tokens": 4096, "max_batch_size": None}
            return _json(told | {"max_concurrent_requests": 128})
        if path == "/metrics":
            return _text(f"tgi_batch_current_size {now.running}", f"tgi_queue_size {now.waiting}")
        return None


class LlamaCppProfile(EngineProfile):
    """It looks after a silent connection only after a second in which nothing has happened, and being asked is a happening."""

    name = "llamacpp"
    server = "llama.cpp"
    owner = "llamacpp"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        if path == "/props":
            return _json({"total_slots": engine.behaviour.slots, "build_info": "b0-standin"})
        if path not in ("/slots", "/metrics"):
            return None
        engine.happened_at = asyncio.get_running_loop().time()
        if path == "/metrics":
            now = engine.shown()
            return _text(f"llamacpp:tokens_predicted_total {now.tokens}", f"llamacpp:requests_processing {now.running}")
        works = {work.slot: work for work in engine.running}
        return _json([_slot(id, works.get(id)) for id in range(engine.behaviour.slots)])

    def client_left(self, engine: FakeEngine, work: FakeWork, streaming: bool) -> None:
        if streaming and work.computed:
            engine.client_gone(work)
            return
        work.gone = True
        self._look(engine, work)

    def _look(self, engine: FakeEngine, work: FakeWork) -> None:
        loop = asyncio.get_running_loop()
        if work.over:
            return
        quiet_s = loop.time() - engine.happened_at
        if quiet_s >= 1.0:
            engine.client_gone(work)
        else:
            loop.call_later(1.0 - quiet_s, self._look, engine, work)


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
    polls_s = 1.0

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        now = engine.shown()
        if path == "/version":
            return _json({"version": "1.2.0"})
        if path != "/prometheus/metrics":
            return None
        return _text(f"trtllm_num_requests_running {now.running}.0", f"trtllm_num_requests_waiting {now.waiting}.0")


class LmDeployProfile(EngineProfile):
    """An answer that does not stream is looked after when a token comes; the abort goes by session."""

    name = "lmdeploy"
    server = "uvicorn"
    owner = "lmdeploy"
    id_field = "session_id"

    def page(self, path: str, engine: FakeEngine) -> Page | None:
        now = engine.shown()
        if path != "/metrics":
            return None
        return _text(f"lmdeploy:num_requests_running {now.running}.0", f"lmdeploy:num_requests_waiting {now.waiting}.0")

    def abort(self, path: str, value: Any, engine: FakeEngine) -> Page | None:
        if path != "/abort_request":
            return None
        engine.abort(str(value["session_id"]))
        return _json({"status": "success"})


LIKENESSES: dict[str, EngineProfile] = {
    like.name: like
    for like in (
        EngineProfile(),
        OpenAIProfile(),
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


def _slot(id: int, work: FakeWork | None) -> dict[str, Any]:
    row: dict[str, Any] = {"id": id, "n_ctx": 4096, "speculative": False, "is_processing": work is not None}
    if work is not None:
        read = 0 if work.prefill_left_s > 0 else work.prompt_tokens
        row |= {"id_task": work.task, "n_prompt_tokens_processed": read, "next_token": [{"n_decoded": work.computed}]}
    return row
