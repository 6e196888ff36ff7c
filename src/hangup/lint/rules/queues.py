"""Rules about queues in front of an engine."""

from __future__ import annotations

from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.project import Project
from hangup.lint.rule import Hit, rule
from hangup.lint.rules.common import runs_inference


@rule(
    "HU013",
    "unbounded-queue",
    Severity.WARNING,
    summary="An unbounded queue in front of an engine.",
    why="""When requests arrive faster than the engine can answer, the queue grows without bound: clients time out before
    their request starts, and the engine computes for all of them. A bounded queue refuses early instead.""",
    hint="give it a `maxsize` and answer 503 when it is full, or use `hangup.Gate`, which also drops who left",
    bad="""
        import asyncio
        from contextlib import asynccontextmanager
        from fastapi import FastAPI, HTTPException
        from openai import AsyncOpenAI

        client = AsyncOpenAI(timeout=60)
        request_queue = asyncio.Queue()

        async def worker():
            while True:
                messages, done = await request_queue.get()
                done.set_result(await client.chat.completions.create(model="m", messages=messages, max_tokens=500))

        @asynccontextmanager
        async def lifespan(app):
            running = asyncio.create_task(worker())
            yield
            running.cancel()

        app = FastAPI(lifespan=lifespan)

        @app.post("/ask")
        async def ask(messages: list[dict]):
            done = asyncio.get_running_loop().create_future()
            if request_queue.full():
                raise HTTPException(503, "busy")
            request_queue.put_nowait((messages, done))
            return await done
        """,
    good="""
        import asyncio
        from contextlib import asynccontextmanager
        from fastapi import FastAPI, HTTPException
        from openai import AsyncOpenAI

        client = AsyncOpenAI(timeout=60)
        request_queue = asyncio.Queue(maxsize=2)

        async def worker():
            while True:
                messages, done = await request_queue.get()
                done.set_result(await client.chat.completions.create(model="m", messages=messages, max_tokens=500))

        @asynccontextmanager
        async def lifespan(app):
            running = asyncio.create_task(worker())
            yield
            running.cancel()

        app = FastAPI(lifespan=lifespan)

        @app.post("/ask")
        async def ask(messages: list[dict]):
            done = asyncio.get_running_loop().create_future()
            if request_queue.full():
                raise HTTPException(503, "busy")
            request_queue.put_nowait((messages, done))
            return await done
        """,
    default=False,  # its precision on unseen code was below 0.8: see docs/lint-field-report.md
)
def unbounded_queue(project: Project) -> Iterator[Hit]:
    for key, function in project.functions():
        for index, spawn in enumerate(function.spawns):
            if spawn.kind == "queue" and runs_inference(project, key, index):
                yield Hit(key[0], spawn.place, f"`{spawn.verb}` may grow without bound while the engine is busy")
