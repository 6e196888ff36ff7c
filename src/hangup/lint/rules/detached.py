"""Rules about inference that nothing holds: it runs to its end even if the client disconnects."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.rule import Hit, rule
from hangup.lint.source import Module, Site
from hangup.lint.vocabulary import Inference, is_inference

_SPAWNERS = frozenset({"create_task", "ensure_future"})
_STOPPERS = ("abort", "cancel")


@rule(
    "HU001",
    "inference-in-background",
    Severity.ERROR,
    summary="Inference runs in a background task.",
    why="""A background task runs to its end after the response, even if the client disconnected long ago. Work that must
    outlive its request belongs in a job with an owner, a limit and a way to cancel it.""",
    hint="await it in the handler with `hangup.run`, or make it a job that can be cancelled",
    bad="""
        from fastapi import BackgroundTasks, FastAPI
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def write_essay(prompt: str) -> None:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}], max_tokens=4000)

        @app.post("/essay")
        async def essay(prompt: str, tasks: BackgroundTasks):
            tasks.add_task(write_essay, prompt)
            return {"status": "started"}
        """,
    good="""
        import hangup
        from fastapi import FastAPI, Request
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def write_essay(prompt: str):
            messages = [{"role": "user", "content": prompt}]
            return await client.chat.completions.create(model="m", messages=messages, max_tokens=4000)

        @app.post("/essay")
        async def essay(request: Request, prompt: str):
            return await hangup.run(request, write_essay(prompt), total_s=60)
        """,
)
def inference_in_background(module: Module) -> Iterator[Hit]:
    inference = Inference.of(module)
    for site in module.calls():
        verb = site.name.rpartition(".")[2]
        if verb not in {"add_task", "BackgroundTask"} or not site.node.args:
            continue
        work = site.node.args[0]
        if isinstance(work, ast.Call):
            continue  # add_task(f()) is a different mistake, or a different add_task
        if inference.maker(work) or _names_inference(module, site, work):
            yield site.node, f"`{module.dotted(work)}` keeps running after the client disconnects"


def _names_inference(module: Module, site: Site, work: ast.expr) -> bool:
    """Return whether the reference itself is inference: add_task(engine.generate, ...) will call it."""
    called = Site(ast.Call(func=work, args=[], keywords=[]), module.dotted(work), site.frame, site.statement)
    return is_inference(module, called)


@rule(
    "HU002",
    "task-handle-dropped",
    Severity.ERROR,
    summary="A task that runs or aborts inference is started without keeping its handle.",
    why="""Nobody can cancel a task without its handle: when the client disconnects, the generation continues. The event
    loop keeps only weak references to tasks, so an abort started this way may never run.""",
    hint="keep the task and cancel it in `finally`, or await the call directly",
    bad="""
        import asyncio
        from fastapi import FastAPI

        app = FastAPI()

        @app.post("/generate")
        async def generate(prompt: str, engine):
            asyncio.create_task(engine.generate(prompt))
            return {"status": "started"}
        """,
    good="""
        import asyncio
        import hangup
        from fastapi import FastAPI, Request

        app = FastAPI()

        @app.post("/generate")
        async def generate(request: Request, prompt: str, engine):
            return await hangup.run(request, engine.generate(prompt), total_s=60)
        """,
)
def task_handle_dropped(module: Module) -> Iterator[Hit]:
    inference = Inference.of(module)
    for site in module.calls():
        if site.name.rpartition(".")[2] not in _SPAWNERS or not site.dropped or not site.node.args or _owned(site):
            continue
        work = module.site(site.node.args[0])
        if work is None:
            continue
        if inference.has(work):
            yield site.node, f"nobody can cancel `{work.name}`: its task has no handle"
        elif work.name.rpartition(".")[2].lstrip("_").startswith(_STOPPERS):
            yield site.node, f"`{work.name}` may be garbage-collected before it runs: nothing references its task"


def _owned(site: Site) -> bool:
    """Return whether a task group owns the task that this call creates."""
    receiver = site.name.rpartition(".")[0].rpartition(".")[2].lower()
    return "group" in receiver or receiver in {"tg", "nursery"}
