"""LangChain's runnables, LlamaIndex's responses and MCP's tools."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from hangup.library.ended import log
from hangup.library.engines.chunks import ChatChunks
from hangup.library.formats.base import tokens_of
from hangup.library.formats.openai import CountedChunk
from hangup.library.sources import close
from hangup.library.token import CancelToken

_CANCEL_S = 1.0  # how long telling an MCP server that its call is cancelled may take


async def langchain(
    runnable: Any, input: Any, config: Any = None, *, model: str = "", **options: Any
) -> AsyncIterator[CountedChunk]:
    """Stream the text of a LangChain runnable: a model, or a chain that ends in one or in a parser of text."""
    chunks = ChatChunks(model)
    reported = counted = 0
    finish_reason = None
    async with aclosing(runnable.astream(input, config, **options)) as messages:
        async for message in messages:
            usage = getattr(message, "usage_metadata", None) or {}
            reported += usage.get("output_tokens") or 0
            about = getattr(message, "response_metadata", None) or {}
            finish_reason = about.get("finish_reason") or about.get("stop_reason") or finish_reason
            text = message if isinstance(message, str) else _text_of(message)
            # LangChain adds up what its messages report; most models report everything in the last one, after the text.
            tokens = reported - counted if usage.get("output_tokens") else tokens_of(text) if text else 0
            counted += tokens
            if text or tokens:
                yield chunks.delta(text, tokens)
    yield chunks.delta("", 0, "length" if finish_reason in {"length", "max_tokens"} else "stop")


def _text_of(message: Any) -> str:
    content = getattr(message, "content", "")
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else str(part.get("text") or "") for part in content)


def llama_index(response: Any, *, model: str = "") -> Callable[[CancelToken], AsyncIterator[CountedChunk]]:
    """Stream what LlamaIndex's `astream_chat(...)` or `astream_complete(...)` (no await), or a streaming query, returns."""

    async def generate(token: CancelToken) -> AsyncIterator[CountedChunk]:
        chunks = ChatChunks(model)
        answer = await response if inspect.isawaitable(response) else response
        token.on_cancel(lambda: _end_writer(answer))
        texts = answer.async_response_gen() if hasattr(answer, "async_response_gen") else answer
        try:
            async for item in texts:
                text = item if isinstance(item, str) else item.delta
                if text:
                    yield chunks.delta(text)
            yield chunks.delta("", 0, "stop")
        finally:
            await close(texts)

    return generate


def _end_writer(answer: Any) -> None:
    """End the task in which a LlamaIndex chat engine reads its model. Its response waits for that task, even when closed, so
    the task must end first."""
    writer = getattr(answer, "awrite_response_to_history_task", None)
    if isinstance(writer, asyncio.Task):
        writer.cancel()


async def mcp_tool(session: Any, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
    """Call a tool of an MCP server; if the call is cancelled, tell the server, which otherwise works on."""
    request_id = getattr(session, "_request_id", None)  # the id that the call will have
    try:
        return await session.call_tool(name, arguments, **options)
    except asyncio.CancelledError:
        if request_id is not None:
            await _send_cancelled(session, name, request_id)
        raise


async def _send_cancelled(session: Any, name: str, request_id: Any) -> None:
    """Tell the server; if that fails, log it, since the caller is to get its cancellation."""
    from mcp import types  # noqa: PLC0415 - the application has it loaded

    parameters = types.CancelledNotificationParams(requestId=request_id, reason="the client hung up")
    notification = types.CancelledNotification(method="notifications/cancelled", params=parameters)
    try:
        async with asyncio.timeout(_CANCEL_S):
            await session.send_notification(types.ClientNotification(notification))
    except Exception as error:
        log.warning("the MCP server was not told that its tool %s is cancelled: %s: %s", name, type(error).__name__, error)
