"""`hangup.sources`: engines inside the application stop when their client leaves.

vLLM, SGLang, transformers, llama-cpp-python and MLX-LM are too large to install here: stand-ins have their interfaces, as far
as the sources use them. `tests/real_engines/test_inside.py` runs the real ones (but for SGLang, which needs a GPU), and
`tests/frameworks/test_sources.py` the real LangChain, LlamaIndex and MCP.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

import hangup
import hangup.sources
from hangup.library import threads
from hangup.library.engines import blocking
from library.pretender import Pretender
from support.raw import events
from support.waiting import soon

Kind = Enum("Kind", ["CUMULATIVE", "DELTA"])
STOPS_ON = (asyncio.CancelledError, GeneratorExit)


def streamed(source: Any, leave_after: int = 0, **options: Any) -> tuple[hangup.Ended, list[Any]]:
    """Stream to a client that leaves after so many chunks, or stays; return the call's end and the events that the client
    got."""

    class Leaver(Pretender):
        async def write(self, data: bytes) -> None:
            await super().write(data)
            if len(self.sent) == leave_after:
                self.disconnected.set()

    async def main() -> tuple[hangup.Ended, list[Any]]:
        client = Leaver()
        ended = await client.stream(source, **options)
        return ended, events(b"".join(client.sent))

    return asyncio.run(main())


def text_of(chunks: list[Any]) -> str:
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


class Vllm:
    """Like `AsyncLLM`: cumulative by default, and a closed generator aborts its request; before 0.9.2 only a cancelled one."""

    def __init__(self, kind: Kind, stops_on: tuple[type[BaseException], ...] = STOPS_ON) -> None:
        self.params = SimpleNamespace(output_kind=kind)
        self.computed = 0
        self.aborted: list[str] = []
        self.stops_on = stops_on
        self.running: set[str] = set()

    async def abort(self, request_id: str) -> None:
        if request_id in self.running:
            self.running.remove(request_id)
            self.aborted.append(request_id)

    async def generate(self, prompt: str, sampling_params: Any, request_id: str) -> AsyncIterator[Any]:
        words = ["a ", "b ", "c ", "d "]
        self.running.add(request_id)
        try:
            for at in range(len(words)):
                await asyncio.sleep(0.01)
                self.computed += 1
                first = at if sampling_params.output_kind.name == "DELTA" else 0
                text, ids = "".join(words[first : at + 1]), list(range(2 * (at + 1 - first)))
                finish = "length" if at == len(words) - 1 else None
                choice = SimpleNamespace(index=0, text=text, token_ids=ids, finish_reason=finish)
                yield SimpleNamespace(outputs=[choice])
            self.running.remove(request_id)
        except self.stops_on:
            await self.abort(request_id)
            raise


@pytest.mark.parametrize("kind", Kind)
def test_vllm(kind: Kind) -> None:
    engine = Vllm(kind)
    ended, chunks = streamed(hangup.sources.vllm(engine, "hello", engine.params, model="m"))
    assert (text_of(chunks), ended.tokens_out, engine.aborted) == ("a b c d ", 8, [])
    assert chunks[-1]["choices"][0]["finish_reason"] == "length" and chunks[0]["object"] == "chat.completion.chunk"
    engine = Vllm(kind)
    ended, _ = streamed(hangup.sources.vllm(engine, "hello", engine.params, request_id="r1"), leave_after=1)
    assert (ended.outcome.value, engine.aborted) == ("client_gone", ["r1"]) and engine.computed <= 2


def test_a_vllm_that_ignores_a_closed_generator_is_told_by_id() -> None:
    engine = Vllm(Kind.DELTA, stops_on=(asyncio.CancelledError,))
    ended, _ = streamed(hangup.sources.vllm(engine, "hello", engine.params), max_tokens=2)
    assert ended.cause == "output_tokens_max" and len(engine.aborted) == 1 and not engine.running


class Sglang:
    """Like `Engine`: its generator does not abort anything when it is closed. `forgets`: as in 0.5.18, it then forgets its
    request, and an abort of a request that it does not know does nothing."""

    def __init__(self, forgets: bool, *, asynchronous: bool = False) -> None:
        self.aborted: list[str] = []
        self.known: set[str] = set()
        self.forgets = forgets
        abort = self._abort_later if asynchronous else self._abort
        self.tokenizer_manager = SimpleNamespace(abort_request=abort)

    def _abort(self, rid: str) -> None:
        if rid in self.known:
            self.aborted.append(rid)

    async def _abort_later(self, rid: str) -> None:
        await asyncio.sleep(0)
        self._abort(rid)

    async def async_generate(self, prompt: Any, sampling_params: Any, stream: bool, rid: str) -> AsyncIterator[Any]:
        async def generate() -> AsyncIterator[Any]:
            self.known.add(rid)
            try:
                for at in range(1, 5):
                    await asyncio.sleep(0.01 if prompt == "hello" else 60)
                    finish = {"type": "stop"} if at == 4 else None
                    yield {"text": "ab " * at, "meta_info": {"id": rid, "completion_tokens": 2 * at, "finish_reason": finish}}
            except BaseException:
                if self.forgets:
                    self.known.discard(rid)
                raise

        return generate()


@pytest.mark.parametrize("forgets", [False, True])
def test_sglang(forgets: bool) -> None:
    engine = Sglang(forgets)
    ended, chunks = streamed(hangup.sources.sglang(engine, "hello", {}))
    assert (text_of(chunks), ended.tokens_out, engine.aborted) == ("ab " * 4, 8, [])
    ended, _ = streamed(hangup.sources.sglang(engine, "hello", {}, rid="r1"), leave_after=2)
    assert (ended.outcome.value, engine.aborted) == ("client_gone", ["r1"])


@pytest.mark.parametrize(("forgets", "asynchronous"), [(False, False), (True, False), (False, True)])
def test_a_client_may_leave_before_sglangs_first_token(forgets: bool, asynchronous: bool) -> None:
    engine = Sglang(forgets, asynchronous=asynchronous)

    async def main() -> hangup.Ended:
        client = Pretender()
        call = asyncio.create_task(client.stream(hangup.sources.sglang(engine, "long", {}, rid="r1")))
        await soon(lambda: engine.known)
        client.disconnected.set()
        return await call

    ended = asyncio.run(main())
    assert (ended.outcome.value, engine.aborted) == ("client_gone", ["r1"])


class TextStreamer:
    """Like that of transformers: it passes decoded text on."""

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        assert options == {"skip_prompt": True, "skip_special_tokens": True}

    def put(self, value: str) -> None:
        self.on_finalized_text(value)

    def end(self) -> None:
        self.on_finalized_text("", stream_end=True)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        raise NotImplementedError


class Model:
    """Like a transformers model: `generate` blocks, and asks its stopping criteria after each token."""

    def __init__(self, fails: bool = False) -> None:
        self.computed = 0
        self.fails = fails
        self.threads: set[str] = set()

    def generate(self, input_ids: str, streamer: TextStreamer, stopping_criteria: list[Any], max_new_tokens: int) -> None:
        self.threads.add(threading.current_thread().name)
        for _ in range(max_new_tokens):
            time.sleep(0.01)
            self.computed += 1
            streamer.put("word ")
            if self.fails:
                raise RuntimeError("CUDA out of memory")
            if any(criterion(input_ids, None) for criterion in stopping_criteria):
                break
        streamer.end()


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("transformers")
    module.TextStreamer = TextStreamer
    monkeypatch.setitem(sys.modules, "transformers", module)


@pytest.mark.usefixtures("transformers")
def test_transformers() -> None:
    model = Model()
    ended, chunks = streamed(hangup.sources.transformers(model, None, {"input_ids": "x"}, max_new_tokens=5))
    assert (text_of(chunks), ended.tokens_out, model.computed) == ("word " * 5, 5, 5)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    model = Model()
    source = hangup.sources.transformers(model, None, {"input_ids": "x"}, max_new_tokens=500)
    ended, _ = streamed(source, leave_after=2)
    assert ended.outcome.value == "client_gone" and model.computed <= 4
    for thread in [thread for thread in threading.enumerate() if thread.name in model.threads]:
        thread.join(10)  # it has told of its end, and may have a few steps left
        assert not thread.is_alive(), thread.name


@pytest.mark.usefixtures("transformers")
def test_a_client_may_leave_while_transformers_waits_for_a_thread() -> None:
    release = threading.Event()
    model = Model()

    async def main() -> hangup.Ended:
        busy = asyncio.create_task(hangup.run(Pretender().request, lambda _: release.wait(60)))
        client = Pretender()
        source = hangup.sources.transformers(model, None, {"input_ids": "x"}, max_new_tokens=5)
        call = asyncio.create_task(client.stream(source, grace_s=60))
        await asyncio.sleep(0.05)
        client.disconnected.set()
        try:
            return await asyncio.wait_for(asyncio.shield(call), 30)
        finally:
            release.set()
            await asyncio.wait({busy, call})

    hangup.set_threads_max(1)
    try:
        ended = asyncio.run(main())
    finally:
        hangup.set_threads_max(threads.THREADS_MAX)
    assert (ended.outcome.value, ended.zombie, model.computed) == ("client_gone", "", 0)


@pytest.mark.usefixtures("transformers")
def test_an_error_of_transformers_is_the_engines() -> None:
    source = hangup.sources.transformers(Model(fails=True), None, {"input_ids": "x"}, max_new_tokens=5)
    ended, _ = streamed(source)
    assert ended.cause == "engine_error" and "CUDA out of memory" in ended.detail


class Llama:
    """Like that of llama-cpp-python: one answer at a time, as an iterator of OpenAI's chunks."""

    def __init__(self) -> None:
        self.computed = self.running = self.most = 0

    def create_chat_completion(self, messages: Any, stream: bool, max_tokens: int) -> Iterator[dict[str, Any]]:
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(max_tokens):
                time.sleep(0.01)
                self.computed += 1
                yield {**head, "choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
        finally:
            self.running -= 1


def test_llama_cpp_one_at_a_time() -> None:
    llm = Llama()

    async def main() -> list[hangup.Ended]:
        clients = [Pretender() for _ in range(3)]
        calls = [client.stream(hangup.sources.llama_cpp(llm, [], max_tokens=3)) for client in clients]
        leaver = Pretender()
        long = asyncio.create_task(leaver.stream(hangup.sources.llama_cpp(llm, [], max_tokens=5000)))
        await soon(lambda: len(leaver.sent) > 1)
        waiting = [asyncio.create_task(call) for call in calls]
        impatient = Pretender()
        gone = asyncio.create_task(impatient.stream(hangup.sources.llama_cpp(llm, [], max_tokens=3)))
        await asyncio.sleep(0.05)
        impatient.disconnected.set()  # it leaves while it waits for its turn
        assert (await asyncio.wait_for(gone, 60)).tokens_out == 0
        leaver.disconnected.set()
        assert (await long).outcome.value == "client_gone"
        return await asyncio.wait_for(asyncio.gather(*waiting), 60)

    ended = asyncio.run(main())
    assert [call.tokens_out for call in ended] == [3, 3, 3] and llm.most == 1 and llm.computed < 200


def test_a_generator_is_closed_within_the_turn_of_its_model() -> None:
    """Not when its last reference goes, which the engine may hold: then another call may use the model already."""

    class Holding(Llama):
        answer: Iterator[dict[str, Any]]
        held: bool | None = None

        def create_chat_completion(self, messages: Any, stream: bool, max_tokens: int) -> Iterator[dict[str, Any]]:
            self.answer = self._watched(super().create_chat_completion(messages, stream, max_tokens))
            return self.answer

        def _watched(self, answer: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
            try:
                yield from answer
            finally:
                self.held = blocking._locks[id(self)].locked()

    llm = Holding()
    chunks = hangup.sources.llama_cpp(llm, [], max_tokens=5)(hangup.CancelToken())
    assert next(iter(chunks)) and llm.held is None
    cast("Generator[Any, None, None]", chunks).close()
    assert llm.held is True and llm.computed == 1 and llm.running == 0


class MlxModel(dict[str, Any]):
    """Like the models of MLX, whose `nn.Module` is a dict, which cannot be hashed."""


def test_mlx_lm(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = 0

    def stream_generate(
        model: Any, tokenizer: Any, prompt: str, prompt_progress_callback: Callable[[int, int], None], max_tokens: int
    ) -> Iterator[Any]:
        nonlocal computed
        for part in range(3):
            time.sleep(0.01)
            prompt_progress_callback(part, 3)
        for at in range(max_tokens):
            time.sleep(0.01)
            computed += 1
            yield SimpleNamespace(text="word ", finish_reason="length" if at == max_tokens - 1 else None)

    module: Any = ModuleType("mlx_lm")
    module.stream_generate = stream_generate
    monkeypatch.setitem(sys.modules, "mlx_lm", module)
    ended, chunks = streamed(hangup.sources.mlx_lm(MlxModel(), None, "hello", max_tokens=4))
    assert (text_of(chunks), ended.tokens_out) == ("word " * 4, 4)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    computed = 0
    ended, _ = streamed(hangup.sources.mlx_lm(MlxModel(), None, "hello", max_tokens=500), leave_after=2)
    assert ended.outcome.value == "client_gone" and computed <= 4
    gc.collect()
    assert not blocking._locks, "a lock does not outlive its model"
