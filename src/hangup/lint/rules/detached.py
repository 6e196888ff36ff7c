"""Rules about inference that nothing holds: it runs to its end even if the client disconnects."""

from __future__ import annotations

from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.names import Key
from hangup.lint.project import Project
from hangup.lint.rule import Hit, rule
from hangup.lint.rules.common import chain, is_startup, is_upkeep, name_of, streams_here


@rule(
    "HU001",
    "inference-in-background",
    Severity.ERROR,
    summary="Inference runs in a background task.",
    why="""A background task runs to its end after the response, even if the client disconnected long ago. Work that must
    outlive its request belongs in a job with an owner, a limit and a way to cancel it. (Tasks that store, index or record
    something, by their names, are not reported.)""",
    hint="await it in the handler with `hangup.run`, or make it a job that can be cancelled",
    bad="""
        from fastapi import BackgroundTasks, FastAPI
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def write_essay(messages: list[dict]) -> None:
            await client.chat.completions.create(model="m", messages=messages, max_tokens=4000)

        @app.post("/essay")
        async def essay(messages: list[dict], tasks: BackgroundTasks):
            tasks.add_task(write_essay, messages)
            return {"status": "started"}
        """,
    good="""
        import hangup
        from fastapi import FastAPI, Request
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def write_essay(messages: list[dict]):
            return await client.chat.completions.create(model="m", messages=messages, max_tokens=4000)

        @app.post("/essay")
        async def essay(request: Request, messages: list[dict]):
            return await hangup.run(request, write_essay(messages), total_s=60)
        """,
    default=False,  # most of what it finds on unseen code is meant so: see docs/lint-field-report.md
)
def inference_in_background(project: Project) -> Iterator[Hit]:
    for (path, number, index), runs in project.by_spawn.items():
        spawn = project.function((path, number)).spawns[index]
        if spawn.kind == "background" and not runs.streams and not runs.forwards and not is_upkeep(spawn.target):
            name = name_of(spawn, runs)
            yield Hit(
                path,
                spawn.place,
                f"`{name}` keeps running after the client disconnects{chain(path, name, runs)}",
            )


@rule(
    "HU002",
    "task-never-cancelled",
    Severity.ERROR,
    summary="A request starts a task that runs inference, and nobody cancels it.",
    why="""When the client disconnects, the generation continues. To keep a reference to the task, as ruff's RUF006 asks,
    protects it
    from the garbage collector and stops nothing.""",
    hint="await the call with `hangup.run`, or keep the task and cancel it in `finally`",
    bad="""
        import asyncio
        from fastapi import FastAPI
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)
        tasks = set()

        @app.post("/essay")
        async def essay(messages: list[dict]):
            task = asyncio.create_task(client.chat.completions.create(model="m", messages=messages, max_tokens=4000))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return {"status": "started"}
        """,
    good="""
        import hangup
        from fastapi import FastAPI, Request
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        @app.post("/essay")
        async def essay(request: Request, messages: list[dict]):
            call = client.chat.completions.create(model="m", messages=messages, max_tokens=4000)
            return await hangup.run(request, call, total_s=60)
        """,
    default=False,  # likewise
)
def task_never_cancelled(project: Project) -> Iterator[Hit]:
    for (path, number, index), runs in project.by_spawn.items():
        key: Key = (path, number)
        function = project.function(key)
        spawn = function.spawns[index]
        if (
            spawn.kind != "task"
            or runs.streams
            or runs.forwards
            or function.ends
            or is_startup(project, key)
            or streams_here(project, key)
        ):
            continue
        kept = spawn.handle in {"await", "value"} or not {spawn.handle, f"+{spawn.handle}"}.isdisjoint(function.handled)
        if (
            not kept
            and not is_upkeep(spawn.target)
            and not _is_worker(project, key, spawn.target)
            and project.served.is_reached(key)
        ):
            name = name_of(spawn, runs)
            yield Hit(
                path,
                spawn.place,
                f"nobody cancels `{name}` when the client disconnects{chain(path, name, runs)}",
            )


def _is_worker(project: Project, key: Key, target: str) -> bool:
    """Return whether the task serves all requests: it loops for ever."""
    return any(project.function(k).endless for k in project.names.callees(*key, target))
