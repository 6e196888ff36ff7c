"""Engines that block their thread: transformers, llama-cpp-python and MLX-LM."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any
from weakref import finalize

from hangup.library.engines.chunks import ChatChunks
from hangup.library.formats.openai import CountedChunk
from hangup.library.threads import result_of, start_function
from hangup.library.token import CancelToken
from hangup.tasks import TASKS

_LOCK_S = 0.1  # how often a thread that waits for its model looks whether its client is still there
_locks: dict[int, threading.Lock] = {}  # by the identities of the models: those of MLX cannot be hashed
_locks_guard = threading.Lock()
_HANDLED = (Exception,)  # the reader of the stream gets them


async def transformers(
    model: Any, tokenizer: Any, inputs: Any, *, name: str = "", streamer_options: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[CountedChunk]:
    """Stream from transformers' `model.generate(**inputs, **options)` in a thread; it stops after its current step.

    The model waits until the client has taken a piece of text before it computes the next.
    """
    token, loop, chunks = CancelToken(), asyncio.get_running_loop(), ChatChunks(name)
    texts: asyncio.Queue[str | None] = asyncio.Queue()
    taken: queue.SimpleQueue[None] = queue.SimpleQueue()
    token.on_cancel(lambda: taken.put(None))

    def deliver(text: str, stream_end: bool) -> None:
        if text and not token.cancelled:
            loop.call_soon_threadsafe(texts.put_nowait, text)
            taken.get()

    streamer = _make_streamer(
        tokenizer, deliver, {"skip_prompt": True, "skip_special_tokens": True, **(streamer_options or {})}
    )
    criteria = [*options.pop("stopping_criteria", ()), token]

    def generate(_: CancelToken) -> None:
        model.generate(**inputs, streamer=streamer, stopping_criteria=criteria, **options)

    thread = await start_function(generate, token)  # in this task: a client that leaves need not wait for a place
    work = TASKS.start("library call", result_of(thread), handled=_HANDLED)
    work.add_done_callback(lambda _: texts.put_nowait(None))
    try:
        while (text := await texts.get()) is not None:
            yield chunks.delta(text, 1)
            taken.put(None)
        await work  # raises what `generate` raised
        yield chunks.delta("", 0, "stop")
    finally:
        token.cancel()
        await asyncio.wait({work})


def _make_streamer(tokenizer: Any, deliver: Callable[[str, bool], None], options: dict[str, Any]) -> Any:
    from transformers import TextStreamer  # noqa: PLC0415 - the application has it loaded

    class Streamer(TextStreamer):  # type: ignore[misc]
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            deliver(text, stream_end)

    return Streamer(tokenizer, **options)


def llama_cpp(llm: Any, messages: Any, **options: Any) -> Callable[[CancelToken], Iterator[Any]]:
    """Stream a chat from llama-cpp-python's `Llama`. It computes one answer at a time: further calls wait for it. A client may
    leave while it reads the prompt."""

    def chat(token: CancelToken) -> Iterator[Any]:
        with (
            _Turn(llm, token),
            _LlamaPrefill(llm, token) as prefill,
            _closed(llm.create_chat_completion(messages=messages, stream=True, **options)) as chunks,
        ):
            for chunk in chunks:
                prefill.end()
                yield chunk

    return chat


class _LlamaPrefill:
    """Lets llama.cpp ask the token while it reads the prompt, which is one step of many seconds (on CPUs and on Metal; CUDA
    does not ask). Only then: llama.cpp asks for each node of its graph, which would be much for a single token."""

    def __init__(self, llm: Any, token: CancelToken) -> None:
        self._llm = llm
        self._token = token
        self._native: Any = getattr(sys.modules.get("llama_cpp"), "llama_cpp", None)
        self._callback: Any = None

    def __enter__(self) -> _LlamaPrefill:
        if self._native is not None and hasattr(self._native, "llama_set_abort_callback"):
            self._callback = self._native.ggml_abort_callback(lambda _: self._token.cancelled)
            self._native.llama_set_abort_callback(self._llm.ctx, self._callback, None)
        return self

    def end(self) -> None:
        if self._callback is not None:
            self._native.llama_set_abort_callback(self._llm.ctx, self._native.ggml_abort_callback(), None)
            self._callback = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        was_reading = self._callback is not None
        self.end()
        if was_reading and kind is RuntimeError:  # "llama_decode returned 2", if the token ended it
            self._token.check()


def mlx_lm(
    model: Any, tokenizer: Any, prompt: Any, *, name: str = "", **options: Any
) -> Callable[[CancelToken], Iterator[Any]]:
    """Stream from MLX-LM's `stream_generate`. Further calls of the same model wait; a client may leave during the prefill."""

    def generate(token: CancelToken) -> Iterator[CountedChunk]:
        from mlx_lm import stream_generate  # noqa: PLC0415 - the application has it loaded

        chunks = ChatChunks(name)
        with _Turn(model, token):
            given = {"prompt_progress_callback": lambda *_: token.check(), **options}
            with _closed(stream_generate(model, tokenizer, prompt, **given)) as steps:
                for step in steps:
                    yield chunks.delta(step.text, 1, getattr(step, "finish_reason", None))

    return generate


def _closed(steps: Any) -> AbstractContextManager[Iterator[Any]]:
    """Close an engine's generator where it was read: within the model's turn, not when the collector finds it after that."""
    return closing(steps) if hasattr(steps, "close") else nullcontext(steps)


class _Turn:
    """A model's turn for one call: such models are not safe for two threads. Raises `Cancelled` if the client leaves first."""

    def __init__(self, model: Any, token: CancelToken) -> None:
        with _locks_guard:
            lock = _locks.get(id(model))
            if lock is None:
                lock = _locks[id(model)] = threading.Lock()
                finalize(model, _locks.pop, id(model)).atexit = False
        self._lock = lock
        self._token = token

    def __enter__(self) -> None:
        while not self._lock.acquire(timeout=_LOCK_S):
            self._token.check()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
