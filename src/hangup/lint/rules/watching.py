"""Rules about watching the client while the engine computes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from hangup.lint.evidence import is_run_certainly
from hangup.lint.facts import CallFacts, Place
from hangup.lint.finding import Severity
from hangup.lint.handlers import BLIND, CANCELLING
from hangup.lint.names import Key
from hangup.lint.project import COLLECTING, Project
from hangup.lint.purposes import has_no_client, is_no_answer, makes_media, says_generation
from hangup.lint.rule import Hit, rule
from hangup.lint.rules.common import chain, name_of
from hangup.lint.runs import Runs

_HEAD = r"^(/api|/openai|/internal\w*|/worker)?(/v\d\w*)?"
_COMPLETIONS = rf"completions$|(chat|text|code)/completion$|{_HEAD}/completion$"  # `/lessons/{{id}}/completion` is a state
_INFERENCE = re.compile(
    rf"{_COMPLETIONS}|{_HEAD}/(messages|responses|generate(_\w+)?|chat|infer(ence)?)/?$|generateContent|worker_generate\w*$",
    re.I,
)
_ROUTE = re.compile(
    rf"{_COMPLETIONS}|{_HEAD}/(messages|responses|generate|infer(ence)?)/?$|^/api/chat$|/worker_generate$", re.I
)
_COMPUTES = re.compile(r"(^|_)(generate|complete|completions?|infer|inference|predict)(_|$)|^(Generat|Predict|Infer)", re.I)
_SUBMITS = re.compile(
    _COMPUTES.pattern + r"|(^|_)(submit|chat|proxy|forward)(_|$)|^process_\w*(request|chat|message)|^(result|wait_for)$", re.I
)
_PREPARES = re.compile(
    r"stream|embed|parse|valid|build|format|prepare|log|check|count|record|convert|get_|template|load|id$|to_|from_|save|store|response"
    r"|should|url|envelope|fallback|is_|has_|name|payload|config|model$|body|params|messages|request$|options|usage|tokens|limit|track|trace|metric|measure",
    re.I,
)
# Handlers of these send their answer by themselves; what they return says nothing.
_ANSWER_BY_SENDING = frozenset({"websocket", "http.server", "tornado", "socketio"})
_Evidence = tuple[bool, bool, bool, bool, bool, int, bool, bool, int, int]
_BLIND_HINT = (
    "this server cannot see a hang-up while the handler runs: limit tokens and time, or serve it with an async framework"
)
_THREAD_HINT = "make the handler `async def` with the async client, and `await hangup.run(request, ...)`"


@rule(
    "HU004",
    "nobody-watches-client",
    Severity.WARNING,
    summary="A handler runs a whole generation while nothing watches the client.",
    why="""Starlette, FastAPI, Litestar, aiohttp and Tornado do not cancel a handler when its client disconnects, and no
    server can
    stop a handler that runs in a thread (Flask, Django's sync views, gRPC's sync servicers, `def` in FastAPI): the generation
    runs to its end and the answer is discarded. Quart, Sanic, Django's async views and gRPC's asyncio servers cancel by
    themselves and are not reported.""",
    hint="`await hangup.run(request, ...)`, or `@hangup.tethered` on the handler",
    bad="""
        from fastapi import FastAPI
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        @app.post("/chat")
        async def chat(messages: list[dict]):
            return await client.chat.completions.create(model="m", messages=messages, max_tokens=500)
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
def nobody_watches_client(project: Project) -> Iterator[Hit]:
    for key, framework in project.handlers():
        function = project.function(key)
        if framework in CANCELLING or function.yields or function.watches or project.files[key[0]].cancels_handlers:
            continue
        if framework == "websocket" and not function.receives:
            continue  # what it calls reads from the socket, and so may notice
        if has_no_client(function.name) or has_no_client(function.path) or makes_media(project.source.inside(key[0])):
            continue
        found = _first(project, key, framework)
        if found is None:
            continue
        place, name, runs = found
        hint = _BLIND_HINT if framework in BLIND else "" if function.is_async else _THREAD_HINT
        message = f"`{name}` runs to its end even if the client disconnects{chain(key[0], name, runs)}"
        yield Hit(key[0], place, message, hint, certain=is_run_certainly(project, key[0], function, name, runs))


def _first(project: Project, key: Key, framework: str) -> tuple[Place, str, Runs] | None:
    """Return the call of a handler that runs a whole generation: of several, the first of those that are most certain."""
    function = project.function(key)
    candidates: list[tuple[_Evidence, Place, str, Runs]] = []
    sends = framework in _ANSWER_BY_SENDING
    own_loop = not function.is_async or framework == "flask"
    quiet = () if sends else {call.place for call in function.calls if call.unanswered}
    for index, call in enumerate(function.calls):
        runs = project.by_call.get((*key, index))
        read = (*key, index) in project.collected and (function.answers or not function.sends_stream)
        collected = read and (not sends or call.drained or call.into in COLLECTING)
        whole = function.sends_stream and runs is not None and runs.streams and _yields_whole(project, key, call)
        if (
            runs is None
            or (runs.streams and not collected and not whole)
            or (runs.blocked and not own_loop)
            or runs.kept
            or runs.labels
            or (runs.may_stream and not function.answers)
            or call.place in quiet
            or project.served.is_unasked(key, runs.needs)
            or (call.last and framework == "websocket")  # the client has left by then
        ):
            continue
        if runs.forwards and not _INFERENCE.search(function.path):
            continue
        if call.gives_request and (call.direct or (framework == "websocket" and _reads_socket(project, key, call))):
            continue  # it may watch the request that it is given, or reads from the socket
        if call.use == "given" and (runs.blocks or _may_watch(project, key, call.into)):
            continue
        waits = whole or call.use in {"await", "given"} or (collected and not runs.blocks) or call.is_known_to_block
        if waits or (own_loop and (runs.blocks or collected)):
            passed = runs.passed and (sends or not call.lost)
            made = replace(runs, passed=passed, decided=call.decided)
            candidates.append((_evidence(call, runs, passed=passed), call.place, call.ref, made))
    if candidates:
        return _best(candidates)
    for index, spawn in enumerate(function.spawns):
        found = project.by_spawn.get((*key, index))
        if (
            found is not None
            and not (found.forwards and not _INFERENCE.search(function.path))
            and (
                (function.waits_for(spawn) and not (spawn.kind == "task" and (found.blocks or found.blocked)))
                or (spawn.kind == "called" and found.blocks and own_loop)
            )
            and not found.streams
            and not (found.kept or found.labels)
            and not spawn.stoppable
            and spawn.place not in quiet
            and not (spawn.kind == "method" and _may_watch(project, key, spawn.verb.rpartition(".")[2]))
        ):
            passed = found.passed and (sends or not spawn.lost)
            return spawn.place, name_of(spawn, found), replace(found, passed=passed, decided=spawn.decided)
    if (waiting := _first_chunk(project, key)) is not None:
        return waiting
    return _by_route(project, key, quiet) if _ROUTE.search(function.path) and function.answers else None


def _evidence(call: CallFacts, runs: Runs, *, passed: bool) -> _Evidence:
    """Return how certain it is that a call runs a generation whenever the handler is called: the larger, the more."""
    telling = passed and says_generation(call.ref)
    kind = (not runs.forwards, not runs.needs, not call.decided)
    return *kind, telling, passed, -call.branches, not call.maybe, bool(call.direct), -runs.branches, -runs.steps


def _best(candidates: list[tuple[_Evidence, Place, str, Runs]]) -> tuple[Place, str, Runs]:
    """Return the first of the most certain calls; of requests to unknown addresses the last, since others prepare it."""
    if all(runs.forwards for *_, runs in candidates):
        return candidates[-1][1:]
    return max(candidates, key=lambda found: found[0])[1:]


def _may_watch(project: Project, key: Key, wrapper: str) -> bool:
    """Return whether the call that is given the work, `await until_gone(request, ask(text))`, may watch the client."""
    outer = [call for call in project.function(key).calls if call.ref.rpartition(".")[2] == wrapper]
    return any(
        call.gives_request or any(project.function(k).watches for k in project.names.callees(*key, call.ref)) for call in outer
    )


def _reads_socket(project: Project, key: Key, call: CallFacts) -> bool:
    """Return whether what is called reads from the WebSocket itself, or in a function inside it, and so sees the end."""
    found = project.names.callees(*key, call.ref)
    return any(project.function(f).receives for callee in found for f in (callee, *project.names.inside(callee)))


def _yields_whole(project: Project, key: Key, call: CallFacts, depth: int = 3) -> bool:
    """Return whether a call makes a sync generator that waits for whole generations: nothing stops one in its thread."""
    callees = [found for found in project.names.callees(*key, call.ref) if project.function(found).yields]
    for callee in callees if depth else ():
        function = project.function(callee)
        made = [(inner, project.by_call.get((*callee, index))) for index, inner in enumerate(function.calls)]
        known = [(inner, runs) for inner, runs in made if runs is not None and not runs.labels]
        if function.is_async or not known:
            return False
        for inner, runs in known:
            if not (_yields_whole(project, callee, inner, depth - 1) if runs.streams else runs.blocks and not runs.may_stream):
                return False
    return bool(callees) and depth > 0


def _first_chunk(project: Project, key: Key) -> tuple[Place, str, Runs] | None:
    """Return where a handler waits for the first chunk of a stream before there is a response that could notice anything."""
    function = project.function(key)
    streams = {
        function.calls[i].ref + "()": runs for (p, n, i), runs in project.by_call.items() if (p, n) == key and runs.streams
    }
    for call in function.calls:
        name = call.ref.removesuffix(".__anext__")
        if name != call.ref and call.use == "await":
            for made in (name, *function.assigned.get(name, ())):
                if made in streams and not streams[made].forwards:
                    return call.place, made.removesuffix("()"), streams[made]
    return None


def _by_route(project: Project, key: Key, quiet: Collection[Place]) -> tuple[Place, str, Runs] | None:
    """Return the call of a handler for inference that must be the inference: `await scheduler.submit(...)` for /generate."""
    function = project.function(key)
    for index, call in enumerate(function.calls):
        receiver, _, verb = call.ref.rpartition(".")
        if (
            (*key, index) in project.by_call
            or not _SUBMITS.search(verb)
            or _PREPARES.search(verb)
            or receiver == "request"
            or call.into
            or is_no_answer(verb)
            or call.place in quiet
        ):
            continue
        made = project.names.find(*key, receiver) if receiver else None
        read = project.names.is_certain(*key, call.ref) or (
            made is not None and project.names.leads_nowhere(made.name, made.path)
        )  # what is called, and no inference was seen in it
        if read and not receiver:
            continue
        found = [project.function(k) for k in project.names.callees(*key, call.ref)]
        if (
            call.gives_request
            or any((f.yields and call.use != "loop") or f.watches or (f.sends_stream and not f.answers) for f in found)
            or not (receiver or found)
        ):
            continue
        plain = bool(found) and not any(f.is_async for f in found)
        waits = call.use in {"await", "loop"} or (plain and call.use == "value" and _COMPUTES.search(verb) is not None)
        if waits if function.is_async else plain and call.use in {"value", "return"}:
            passed = not call.lost and not read
            return call.place, call.ref, Runs(call.ref, key[0], call.place[0], passed=passed, decided=call.decided)
    return None


@rule(
    "HU010",
    "middleware-hides-disconnect",
    Severity.WARNING,
    summary="`BaseHTTPMiddleware` (or `@app.middleware`) in front of a handler that polls for the disconnect.",
    why="""Behind it, `request.is_disconnected()` always returns False (measured with Starlette 1.10), so a handler that
    polls it runs to its end. A plain ASGI middleware hides nothing. Where no handler polls, nothing is reported.""",
    hint="write it as a plain ASGI middleware: `async def __call__(self, scope, receive, send)`",
    bad="""
        import asyncio
        from fastapi import FastAPI, Request, Response
        from openai import AsyncOpenAI
        from starlette.middleware.base import BaseHTTPMiddleware

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        class Timing(BaseHTTPMiddleware):
            async def dispatch(self, request, call_next):
                return await call_next(request)

        app.add_middleware(Timing)

        @app.post("/chat")
        async def chat(request: Request, messages: list[dict]):
            task = asyncio.create_task(client.chat.completions.create(model="m", messages=messages, max_tokens=500))
            while not task.done():
                if await request.is_disconnected():
                    task.cancel()
                    return Response(status_code=499)
                await asyncio.sleep(0.1)
            return await task
        """,
    good="""
        import asyncio
        from fastapi import FastAPI, Request, Response
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        class Timing:
            def __init__(self, app):
                self.app = app

            async def __call__(self, scope, receive, send):
                await self.app(scope, receive, send)

        app.add_middleware(Timing)

        @app.post("/chat")
        async def chat(request: Request, messages: list[dict]):
            task = asyncio.create_task(client.chat.completions.create(model="m", messages=messages, max_tokens=500))
            while not task.done():
                if await request.is_disconnected():
                    task.cancel()
                    return Response(status_code=499)
                await asyncio.sleep(0.1)
            return await task
        """,
    default=False,  # its precision on unseen code was below 0.8: see docs/lint-field-report.md
)
def middleware_hides_disconnect(project: Project) -> Iterator[Hit]:
    polls = [(path, place) for path, facts in sorted(project.files.items()) for place in facts.polls]
    if not polls:
        return
    project.source.read_users("middleware", method=True)
    for path, facts in sorted(project.files.items()):
        near = [(where, place) for where, place in polls if path.partition("/")[0] == where.partition("/")[0]]
        for middleware in facts.middlewares if near else ():
            where, place = near[0]
            message = f"`{middleware.message}` hides the disconnect from the handler that polls for it ({where}:{place[0]})"
            yield Hit(path, middleware.place, message)
