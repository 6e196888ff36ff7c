"""vLLM's and SGLang's engines as Python objects."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from hangup.library.engines.chunks import ChatChunks
from hangup.library.formats.openai import CountedChunk
from hangup.library.sources import close


async def vllm(
    engine: Any, prompt: Any, sampling_params: Any, *, request_id: str = "", model: str = "", **options: Any
) -> AsyncIterator[CountedChunk]:
    """Stream from vLLM's AsyncLLM (or AsyncLLMEngine); closing its generator makes vLLM abort the request."""
    chunks = ChatChunks(model)
    in_deltas = getattr(getattr(sampling_params, "output_kind", None), "name", "") == "DELTA"
    sent: dict[int, tuple[int, int]] = {}  # characters and tokens, per choice
    outputs = engine.generate(prompt, sampling_params, request_id or f"hangup-{uuid.uuid4().hex}", **options)
    async with aclosing(outputs):
        async for output in outputs:
            for choice in output.outputs:
                characters, tokens = (0, 0) if in_deltas else sent.get(choice.index, (0, 0))
                sent[choice.index] = len(choice.text), len(choice.token_ids)
                text, count = choice.text[characters:], len(choice.token_ids) - tokens
                if text or count or choice.finish_reason:
                    yield chunks.delta(text, count, choice.finish_reason, choice.index)


async def sglang(
    engine: Any, prompt: Any = None, sampling_params: Any = None, *, rid: str = "", model: str = "", **options: Any
) -> AsyncIterator[CountedChunk]:
    """Stream from SGLang's `Engine`. Closing its generator does not stop the request, so hangup aborts it by its id."""
    chunks = ChatChunks(model)
    rid = rid or f"hangup-{uuid.uuid4().hex}"
    if "rid" in inspect.signature(engine.async_generate).parameters:
        options["rid"] = rid
    settings = getattr(engine, "server_args", None)
    in_deltas = any(getattr(settings, name, False) for name in ("stream_output", "incremental_streaming_output"))
    sent, counted, finish_reason = 0, 0, None
    try:
        outputs = await engine.async_generate(prompt=prompt, sampling_params=sampling_params, stream=True, **options)
        try:
            async for output in outputs:
                about = output["meta_info"]
                rid = about.get("id") or rid
                finish_reason = (about.get("finish_reason") or {}).get("type")
                text, tokens = output["text"][0 if in_deltas else sent :], about.get("completion_tokens", counted + 1) - counted
                sent, counted = len(output["text"]), counted + tokens
                yield chunks.delta(text, tokens, finish_reason)
        finally:
            await close(outputs)
    finally:
        if finish_reason is None:
            await _abort(engine, rid)


async def _abort(engine: Any, rid: str) -> None:
    abort = getattr(engine, "abort_request", None) or engine.tokenizer_manager.abort_request
    result = abort(rid)
    if inspect.isawaitable(result):
        await result
