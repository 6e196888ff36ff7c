"""A gateway as people write it: FastAPI passes the call on with httpx.

usage: python -m bench.scoreboard.fastapi_app ENGINE_URL PORT
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse


def application(engine: str) -> FastAPI:
    app = FastAPI()
    client = httpx.AsyncClient(base_url=engine, timeout=600)

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse((await client.get("/v1/models")).json())

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.json()
        if not body.get("stream"):
            answer = await client.post("/v1/chat/completions", json=body)
            return JSONResponse(answer.json(), answer.status_code)

        async def events() -> AsyncIterator[bytes]:
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                async for chunk in answer.aiter_bytes():
                    yield chunk

        return StreamingResponse(events(), media_type="text/event-stream")

    return app


if __name__ == "__main__":
    uvicorn.run(application(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
