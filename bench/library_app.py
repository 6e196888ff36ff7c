"""The application that `bench/library.py` measures: each handler once without hangup and once with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from openai.types.chat import ChatCompletionChunk
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import hangup

EVENT = b'data: {"choices":[{"delta":{"content":" word"}}]}\n\n'
CHUNK = ChatCompletionChunk.model_validate(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "bench-model",
        "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None, "logprobs": None}],
    }
)


async def events(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield EVENT


async def chunks(count: int) -> AsyncIterator[ChatCompletionChunk]:
    for _ in range(count):
        yield CHUNK


async def encoded(count: int) -> AsyncIterator[bytes]:
    async for chunk in chunks(count):
        yield b"data: " + chunk.model_dump_json(exclude_unset=True).encode() + b"\n\n"


def blocking(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield EVENT


async def work() -> str:
    await asyncio.sleep(0)
    return "an answer"


async def handle(request: Request) -> Any:
    count, way = int(request.query_params.get("count", "1")), request.path_params["way"]
    match request.path_params["what"]:
        case "events":
            return StreamingResponse(events(count)) if way == "plain" else hangup.stream(request, events(count))
        case "chunks":
            return StreamingResponse(encoded(count)) if way == "plain" else hangup.stream(request, chunks(count))
        case "capped":
            if way == "plain":
                return StreamingResponse(encoded(count))
            return hangup.stream(request, chunks(count), max_tokens=count)
        case "blocking":
            return StreamingResponse(blocking(count)) if way == "plain" else hangup.stream(request, blocking(count))
    text: Any = await work() if way == "plain" else await hangup.run(request, work())
    return JSONResponse({"text": text})


async def cpu(_: Request) -> JSONResponse:
    return JSONResponse(time.process_time())


app = Starlette(routes=[Route("/cpu", cpu), Route("/{what}/{way}", handle)])
