"""Rules about calls that block the event loop: while one runs, no client's disconnect is noticed, of this call or any other."""

from __future__ import annotations

from collections.abc import Iterator

from hangup.lint.evidence import is_reached_certainly
from hangup.lint.facts import CallFacts
from hangup.lint.finding import Severity
from hangup.lint.names import Key
from hangup.lint.project import Project
from hangup.lint.purposes import is_no_answer
from hangup.lint.rule import Hit, rule
from hangup.lint.rules.common import chain


@rule(
    "HU005",
    "blocking-inference",
    Severity.ERROR,
    summary="A blocking engine or SDK call in an async function.",
    why="""The call blocks the event loop until it returns, also if it is made in a function of another module: no hang-up is
    noticed,
    no timeout fires, and every other stream of the process stalls. (Calls of `requests` in the async function itself are
    reported by flake8-async and ruff as ASYNC210.)""",
    hint="use the async client, or `hangup.run(request, function)`, which runs it in a thread with a `hangup.CancelToken`",
    bad="""
        from fastapi import FastAPI
        from openai import OpenAI

        app = FastAPI()
        client = OpenAI(timeout=60)

        @app.post("/chat")
        async def chat(messages: list[dict]):
            return client.chat.completions.create(model="m", messages=messages, max_tokens=500)
        """,
    good="""
        import hangup
        from fastapi import FastAPI, Request
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        @app.post("/chat")
        async def chat(request: Request, messages: list[dict]):
            call = client.chat.completions.create(model="m", messages=messages, max_tokens=500)
            return await hangup.run(request, call, total_s=60)
        """,
)
def blocking_inference(project: Project) -> Iterator[Hit]:
    for (path, number, index), runs in project.by_call.items():
        function = project.function((path, number))
        if not function.is_async or not runs.blocks or runs.forwards or runs.kept:
            continue
        call = function.calls[index]
        if call.use == "await" or call.is_known_to_block:
            continue
        if is_no_answer(function.name) or is_no_answer(function.path):
            continue
        reads = call.direct or (call.use == "loop" and call.into != "async for")  # a plain loop waits for each chunk
        if (runs.streams and not reads) or not project.served.shares_loop((path, number), runs.needs):
            continue
        message = f"`{call.ref}` blocks the event loop until the engine has finished{chain(path, call.ref, runs)}"
        certain = is_reached_certainly(project, (path, number), call, runs) and not _is_second(project, (path, number), call)
        yield Hit(path, call.place, message, certain=certain)


def _is_second(project: Project, key: Key, call: CallFacts) -> bool:
    """Return whether a call blocks only where a constant is not true, and another one does where it is: an older SDK's."""
    if not call.instead:
        return False
    first, last = call.instead
    others = enumerate(project.function(key).calls)
    return any(first <= other.place[0] <= last and _blocks(project, (*key, index)) for index, other in others)


def _blocks(project: Project, call: tuple[str, int, int]) -> bool:
    runs = project.by_call.get(call)
    return runs is not None and runs.blocks
