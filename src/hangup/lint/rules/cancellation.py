"""Rules about cancellation that does not arrive, because a shield blocks it."""

from __future__ import annotations

from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.project import Project
from hangup.lint.rule import Hit, rule
from hangup.lint.rules.common import runs_inference


@rule(
    "HU009",
    "inference-shielded",
    Severity.ERROR,
    summary="`asyncio.shield` (or a shielded cancel scope) around inference.",
    why="""A shield blocks cancellation: when the client disconnects, the caller is cancelled, but the generation inside
    runs to its end.""",
    hint="shield only the cleanup, never the generation",
    bad="""
        import asyncio
        import hangup
        from fastapi import FastAPI, Request
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def answer(messages):
            return await asyncio.shield(client.chat.completions.create(model="m", messages=messages, max_tokens=500))

        @app.post("/chat")
        async def chat(request: Request, messages: list[dict]):
            return await hangup.run(request, answer(messages), total_s=60, grace_s=1)
        """,
    good="""
        import asyncio
        import hangup
        from fastapi import FastAPI, Request
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def answer(messages):
            return await client.chat.completions.create(model="m", messages=messages, max_tokens=500)

        @app.post("/chat")
        async def chat(request: Request, messages: list[dict]):
            return await hangup.run(request, answer(messages), total_s=60, grace_s=1)
        """,
    default=False,  # its one finding on unseen code was wrong: see docs/lint-field-report.md
)
def inference_shielded(project: Project) -> Iterator[Hit]:
    for key, function in project.functions():
        for index, spawn in enumerate(function.spawns):
            # where the function cancels what it started in `finally`, the shield is only against a timeout
            if spawn.kind == "shield" and not function.ends and runs_inference(project, key, index):
                yield Hit(key[0], spawn.place, f"the shield keeps `{spawn.target}` running after the client disconnects")
