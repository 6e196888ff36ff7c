"""The real LangChain, LlamaIndex and MCP as sources: when the client disconnects, the model or the tool stops."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import hangup
import hangup.sources
from library.pretender import Pretender
from library.test_engines import streamed, text_of
from support.waiting import soon

if os.environ.get("FRAMEWORK_TESTS") != "required":
    pytest.skip("needs the packages of `make test-frameworks`", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

WORDS = 50


class Counter:
    """Counts what a model computed, and knows whether it still runs."""

    def __init__(self) -> None:
        self.computed = self.running = 0

    async def words(self) -> AsyncIterator[str]:
        self.running += 1
        try:
            for _ in range(WORDS):
                await asyncio.sleep(0.01)
                self.computed += 1
                yield "word "
        finally:
            self.running -= 1


def langchain_model(counter: Counter) -> Any:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessageChunk
    from langchain_core.outputs import ChatGenerationChunk

    class Model(BaseChatModel):  # type: ignore[misc]
        @property
        def _llm_type(self) -> str:
            return "counting"

        def _generate(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            async for word in counter.words():
                yield ChatGenerationChunk(message=AIMessageChunk(content=word))

    return Model()


def test_langchain() -> None:
    from langchain_core.output_parsers import StrOutputParser

    chains: list[Callable[[Any], Any]] = [lambda model: model, lambda model: model | StrOutputParser()]
    for chain in chains:
        counter = Counter()
        ended, chunks = streamed(hangup.sources.langchain(chain(langchain_model(counter)), "hello"))
        assert (text_of(chunks), ended.tokens_out, counter.running) == ("word " * WORDS, WORDS, 0)
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        counter = Counter()
        ended, _ = streamed(hangup.sources.langchain(chain(langchain_model(counter)), "hello"), leave_after=3)
        assert ended.outcome.value == "client_gone" and counter.computed <= 5 and counter.running == 0


def llama_index_model(counter: Counter) -> Any:
    from llama_index.core.llms import ChatMessage, ChatResponse, CompletionResponse, CustomLLM, LLMMetadata

    class Model(CustomLLM):  # type: ignore[misc]
        @property
        def metadata(self) -> LLMMetadata:
            return LLMMetadata(is_chat_model=True)

        def complete(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        def stream_complete(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        async def astream_complete(self, *_: Any, **__: Any) -> Any:
            async def responses() -> AsyncIterator[Any]:
                async for word in counter.words():
                    yield CompletionResponse(text="", delta=word)

            return responses()

        async def astream_chat(self, *_: Any, **__: Any) -> Any:
            async def responses() -> AsyncIterator[Any]:
                async for word in counter.words():
                    yield ChatResponse(message=ChatMessage(role="assistant", content=word), delta=word)

            return responses()

    return Model()


@pytest.mark.parametrize("way", ["chat", "complete", "engine"])
def test_llama_index(way: str) -> None:
    from llama_index.core.chat_engine import SimpleChatEngine
    from llama_index.core.llms import ChatMessage

    def source(counter: Counter) -> Any:
        model = llama_index_model(counter)
        if way == "chat":
            return hangup.sources.llama_index(model.astream_chat([ChatMessage(content="hello")]))
        if way == "complete":
            return hangup.sources.llama_index(model.astream_complete("hello"))
        return hangup.sources.llama_index(SimpleChatEngine.from_defaults(llm=model).astream_chat("hello"))

    counter = Counter()
    ended, chunks = streamed(source(counter))
    assert (text_of(chunks), counter.running) == ("word " * WORDS, 0) and ended.outcome.value == "completed"
    counter = Counter()
    ended, _ = streamed(source(counter), leave_after=3)
    assert ended.outcome.value == "client_gone" and counter.computed < WORDS and counter.running == 0
    gc.collect()  # here, where the warning of its chat memory's database, which it never closes, is ignored


def test_a_cancelled_mcp_tool_stops_on_its_server() -> None:
    from mcp import Client
    from mcp.server import MCPServer

    state = {"running": 0, "finished": 0, "cancelled": 0}
    server = MCPServer("tools")

    @server.tool()  # type: ignore[untyped-decorator]
    async def long() -> str:
        state["running"] += 1
        try:
            await asyncio.sleep(30)
            state["finished"] += 1
        except asyncio.CancelledError:
            state["cancelled"] += 1
            raise
        return "done"

    async def main() -> None:
        async with Client(server) as session:
            client = Pretender()
            call = asyncio.create_task(hangup.run(client.request, hangup.sources.mcp_tool(session, "long")))
            await soon(lambda: state["running"])
            client.disconnected.set()
            with pytest.raises(hangup.CallEnded):
                await call
            await soon(lambda: state["cancelled"])

    asyncio.run(main())
    assert state == {"running": 1, "finished": 0, "cancelled": 1}
