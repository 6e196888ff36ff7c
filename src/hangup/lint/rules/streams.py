"""Rules about streams from an engine to a client: what produces them stops, and the client is watched while no chunk comes."""

from __future__ import annotations

from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.project import Project
from hangup.lint.rule import Hit, rule
from hangup.lint.rules.common import chain, is_startup, is_upkeep, name_of, runs_inference, streams_here, with_near


@rule(
    "HU003",
    "producer-not-stopped",
    Severity.ERROR,
    summary="A stream is fed by a task or a thread that nobody stops.",
    why="""When the client disconnects, the framework ends the generator that sends the stream, but not what feeds it: a task
    that
    fills a queue, a callback's task, or `Thread(target=model.generate)` with a streamer. That runs to its end. (A generator
    that
    reads from the engine itself needs nothing: ending it closes the engine's stream.)""",
    hint="cancel the task in `finally`, give the thread a stopping criterion (a `hangup.CancelToken`), or use `hangup.stream`",
    bad="""
        import asyncio
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def answer(messages, queue):
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=500)
            async for chunk in stream:
                await queue.put(chunk.choices[0].delta.content or "")
            await queue.put(None)

        async def tokens(messages):
            queue = asyncio.Queue()
            task = asyncio.create_task(answer(messages, queue))
            while (text := await queue.get()) is not None:
                yield text
            await task

        @app.post("/chat")
        async def chat(messages: list[dict]):
            return StreamingResponse(tokens(messages))
        """,
    good="""
        import asyncio
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def answer(messages, queue):
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=500)
            async for chunk in stream:
                await queue.put(chunk.choices[0].delta.content or "")
            await queue.put(None)

        async def tokens(messages):
            queue = asyncio.Queue()
            task = asyncio.create_task(answer(messages, queue))
            try:
                while (text := await queue.get()) is not None:
                    yield text
            finally:
                task.cancel()

        @app.post("/chat")
        async def chat(messages: list[dict]):
            return StreamingResponse(tokens(messages))
        """,
    default=False,  # its one finding on the latest unseen set was debatable: see docs/lint-field-report.md
)
def producer_not_stopped(project: Project) -> Iterator[Hit]:
    for (path, number, index), runs in project.by_spawn.items():
        key = (path, number)
        function = project.function(key)
        spawn = function.spawns[index]
        if (
            spawn.kind not in {"thread", "task", "executor"}
            or spawn.stoppable
            or runs.forwards
            or not streams_here(project, key)
        ):
            continue
        if (
            function.watches
            or f"+{spawn.handle}" in function.handled
            or is_startup(project, key)
            or any(project.function(k).ends for k in with_near(project, key))
        ):
            continue
        if is_upkeep(spawn.target) or (spawn.kind == "executor" and spawn.handle == "await" and not function.yields):
            continue
        where = "its thread" if spawn.kind != "task" else "its task"
        name = name_of(spawn, runs)
        yield Hit(
            path,
            spawn.place,
            f"`{name}` keeps computing in {where} after the client disconnects{chain(path, name, runs)}",
        )


@rule(
    "HU011",
    "disconnect-polled-late",
    Severity.WARNING,
    summary="A loop polls `is_disconnected()` only after each chunk, and nothing else watches the client.",
    why="""Until the first token, and whenever the engine pauses, the loop waits for the engine and nobody watches the
    client: the engine computes a long prefill in full for a client that left during the first second. (In the generator
    of a streaming response, the framework watches as well; there the poll is redundant, and not reported.)""",
    hint="watch the client while the loop runs: `await hangup.run(request, ...)`",
    bad="""
        from fastapi import FastAPI, Request
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        @app.post("/chat")
        async def chat(request: Request, messages: list[dict]):
            text = ""
            async for chunk in await client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=500):
                if await request.is_disconnected():
                    return None
                text += chunk.choices[0].delta.content or ""
            return {"text": text}
        """,
    good="""
        import hangup
        from fastapi import FastAPI, Request
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def collect(messages):
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=500)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        @app.post("/chat")
        async def chat(request: Request, messages: list[dict]):
            return {"text": await hangup.run(request, collect(messages), total_s=120)}
        """,
)
def disconnect_polled_late(project: Project) -> Iterator[Hit]:
    for key, function in project.functions():
        for index, spawn in enumerate(function.spawns):
            if spawn.kind == "poll" and runs_inference(project, key, index):
                yield Hit(key[0], spawn.place, "nobody looks at the client until the engine has sent something")
