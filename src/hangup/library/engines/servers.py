"""vLLM's and SGLang's engines as Python objects."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from hangup.library.ended import log
from hangup.library.engines.chunks import ChatChunks
from hangup.library.formats.openai import CountedChunk
from hangup.library.sources import close
from hangup.library.token import CancelToken


async def vllm(
    engine: Any, prompt: Any, sampling_params: Any, *, request_id: str = "", model: str = "", **options: Any
) -> AsyncIterator[CountedChunk]:
    """Stream from vLLM's AsyncLLM (or AsyncLLMEngine); closing its generator makes vLLM abort the request.

    vLLM before 0.9.2 does so only if the generator waits at that moment, so a request whose id is hangup's own is aborted by
    that id as well. An id of the application's might be in use for another request.
    """
    chunks = ChatChunks(model)
    in_deltas = getattr(getattr(sampling_params, "output_kind", None), "name", "") == "DELTA"
    sent: dict[int, tuple[int, int]] = {}  # characters and tokens, per choice
    is_own_id = not request_id
    request_id = request_id or f"hangup-{uuid.uuid4().hex}"
    is_over = False
    try:
        async with aclosing(engine.generate(prompt, sampling_params, request_id, **options)) as outputs:
            async for output in outputs:
                for choice in output.outputs:
                    characters, tokens = (0, 0) if in_deltas else sent.get(choice.index, (0, 0))
                    sent[choice.index] = len(choice.text), len(choice.token_ids)
                    text, count = choice.text[characters:], len(choice.token_ids) - tokens
                    if text or count or choice.finish_reason:
                        yield chunks.delta(text, count, choice.finish_reason, choice.index)
        is_over = True
    finally:
        if is_own_id and not is_over:
            await _Abort(lambda: engine.abort(request_id)).done()


def sglang(
    engine: Any, prompt: Any = None, sampling_params: Any = None, *, rid: str = "", model: str = "", **options: Any
) -> Callable[[CancelToken], AsyncIterator[CountedChunk]]:
    """Stream from SGLang's `Engine`. Closing its generator does not stop the request, so hangup aborts it by its id.

    The abort comes first: some versions of SGLang forget a request whose generator is closed or cancelled, and then refuse to
    abort it, although it is still being computed.
    """

    async def generate(token: CancelToken) -> AsyncIterator[CountedChunk]:
        chunks = ChatChunks(model)
        request_id, sent, counted, finish_reason = rid or f"hangup-{uuid.uuid4().hex}", 0, 0, None
        given = {"rid": request_id} if "rid" in inspect.signature(engine.async_generate).parameters else {}
        settings = getattr(engine, "server_args", None)
        in_deltas = any(getattr(settings, name, False) for name in ("stream_output", "incremental_streaming_output"))
        abort = _Abort(lambda: _sglang_abort(engine)(request_id))
        token.on_cancel(lambda: abort.start() if finish_reason is None else None)
        try:
            outputs = await engine.async_generate(
                prompt=prompt, sampling_params=sampling_params, stream=True, **given, **options
            )
            try:
                async for output in outputs:
                    about = output["meta_info"]
                    request_id = about.get("id") or request_id
                    finish_reason = (about.get("finish_reason") or {}).get("type")
                    text = output["text"][0 if in_deltas else sent :]
                    tokens = about.get("completion_tokens", counted + 1) - counted
                    sent, counted = len(output["text"]), counted + tokens
                    yield chunks.delta(text, tokens, finish_reason)
            finally:
                if finish_reason is None:
                    abort.start()
                await close(outputs)
        finally:
            if finish_reason is None:
                await abort.done()

    return generate


def _sglang_abort(engine: Any) -> Callable[[str], Any]:
    return getattr(engine, "abort_request", None) or engine.tokenizer_manager.abort_request  # type: ignore[no-any-return]


class _Abort:
    """An engine's abort, which is called once. If it fails, that is logged, since the caller is to get its own error."""

    def __init__(self, abort: Callable[[], Any]) -> None:
        self._abort = abort
        self._result: Any = None
        self._is_started = False

    def start(self) -> None:
        if self._is_started:
            return
        self._is_started = True
        try:
            self._result = self._abort()
        except Exception:
            log.exception("the engine could not abort a request")

    async def done(self) -> None:
        self.start()
        if not inspect.isawaitable(self._result):
            return
        try:
            await self._result
        except Exception:
            log.exception("the engine could not abort a request")
