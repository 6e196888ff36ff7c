"""Rules about calls that block the event loop: while one runs, no client's disconnect is noticed, of this call or any other."""

from __future__ import annotations

from collections.abc import Iterator

from hangup.lint.evidence import is_reached_certainly
from hangup.lint.facts import CallFacts, FunctionFacts
from hangup.lint.finding import Severity
from hangup.lint.names import Key
from hangup.lint.project import Project
from hangup.lint.purposes import is_no_answer
from hangup.lint.rule import Hit, rule
from hangup.lint.rules.common import chain, name_of
from hangup.lint.runs import Runs


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
        key = (path, number)
        function = project.function(key)
        call = function.calls[index]
        if call.use == "await" or call.is_known_to_block or not _may_block(function, call.ref, runs):
            continue
        reads = call.direct or function.loops_over(call, plainly=True)  # a plain loop waits for each chunk
        if (runs.streams and not reads) or not _is_reached(project, key, call.ref, runs):
            continue
        message = f"`{call.ref}` blocks the event loop until the engine has finished{chain(path, call.ref, runs)}"
        certain = is_reached_certainly(project, key, call, runs) and not _is_second(project, key, call)
        yield Hit(path, call.place, message, certain=certain)
    for (path, number, index), runs in project.by_spawn.items():
        key = (path, number)
        function = project.function(key)
        spawn = function.spawns[index]
        if not spawn.read or not (runs.streams or spawn.direct) or not _may_block(function, spawn.target, runs):
            continue
        if _is_reached(project, key, spawn.target, runs):
            made = name_of(spawn, runs)  # in a thread, but the stream is read on the loop
            message = f"a loop without `async` over what `{made}` returns blocks the event loop until the engine has finished"
            yield Hit(path, spawn.place, message, certain=False)


def _may_block(function: FunctionFacts, called: str, runs: Runs) -> bool:
    """Return whether a call in this function may block a loop while a client waits for a generation."""
    if not function.is_async or not runs.blocks or runs.forwards or runs.kept:
        return False
    return not is_no_answer(function.name, called)


def _is_reached(project: Project, key: Key, called: str, runs: Runs) -> bool:
    """Return whether a request comes to a call on a loop that serves others, and not by a route for something else."""
    # the path of what is registered by a call is known only now
    return project.served.shares_loop(key, runs.needs) and not is_no_answer(project.function(key).path, called)


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
