"""Rules about work without a limit on tokens or attempts."""

from __future__ import annotations

from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.project import Project
from hangup.lint.rule import Hit, rule
from hangup.lint.rules.common import runs_inference


@rule(
    "HU007",
    "no-max-tokens",
    Severity.WARNING,
    summary="A generation without a token limit.",
    why="""The token limit is the last defence: if the hang-up is lost on the way, or the engine ignores it, the generation
    still
    ends, at a known cost. Without it, most engines continue to the end of the context window.""",
    hint="pass `max_tokens` (or `max_completion_tokens`, `max_output_tokens`)",
    bad="""
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def tokens(messages):
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            async for chunk in stream:
                yield chunk.choices[0].delta.content or ""

        @app.post("/chat")
        async def chat(messages: list[dict]):
            return StreamingResponse(tokens(messages))
        """,
    good="""
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def tokens(messages):
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=8)
            async for chunk in stream:
                yield chunk.choices[0].delta.content or ""

        @app.post("/chat")
        async def chat(messages: list[dict]):
            return StreamingResponse(tokens(messages))
        """,
    default=False,  # a limit is a matter of policy; nothing leaks while the engine notices hang-ups
)
def no_max_tokens(project: Project) -> Iterator[Hit]:
    for path, number, index in project.by_call:
        call = project.function((path, number)).calls[index]
        if call.direct and call.uncapped and project.served.is_reached((path, number)):
            yield Hit(path, call.place, f"`{call.ref}` may generate to the end of the context window")


@rule(
    "HU012",
    "retries-without-budget",
    Severity.WARNING,
    summary="Inference is retried without a limit.",
    why="""Each retry is a whole generation. Without a limit on attempts or on time, an overloaded engine gets the same
    work again and again, for clients that disconnected long ago; in a thread nothing else ends it. Reported are tenacity and
    backoff without a stop, and `while True` around `try` whose clauses neither leave the loop nor call something that
    might.""",
    hint="limit the attempts and the time (tenacity: `stop=stop_after_attempt(3) | stop_after_delay(30)`)",
    bad="""
        import time
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from openai import APIError, OpenAI

        app = FastAPI()
        client = OpenAI(timeout=60, max_retries=0)

        def answer(messages):
            while True:
                try:
                    return client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=500)
                except APIError:
                    time.sleep(0.1)

        def tokens(messages):
            for chunk in answer(messages):
                yield chunk.choices[0].delta.content or ""

        @app.post("/chat")
        async def chat(messages: list[dict]):
            return StreamingResponse(tokens(messages))
        """,
    good="""
        import time
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from openai import APIError, OpenAI

        app = FastAPI()
        client = OpenAI(timeout=60, max_retries=0)

        def answer(messages):
            for attempt in range(3):
                try:
                    return client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=500)
                except APIError:
                    time.sleep(0.1)
            raise RuntimeError("the engine failed three times")

        def tokens(messages):
            for chunk in answer(messages):
                yield chunk.choices[0].delta.content or ""

        @app.post("/chat")
        async def chat(messages: list[dict]):
            return StreamingResponse(tokens(messages))
        """,
)
def retries_without_budget(project: Project) -> Iterator[Hit]:
    for key, function in project.functions():
        for index, spawn in enumerate(function.spawns):
            if spawn.kind == "retry" and runs_inference(project, key, index):
                yield Hit(key[0], spawn.place, f"`{spawn.verb}` is retried without a limit")
