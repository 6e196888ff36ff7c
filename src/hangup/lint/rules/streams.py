"""Rules about streams from an engine to a client: always closed, watched while no chunk comes, sent chunk by chunk."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.rule import Hit, rule
from hangup.lint.source import Frame, Function, Module, Site
from hangup.lint.vocabulary import Inference, feeds_client, is_streaming_response, streams

_CLOSES = re.compile(r"close|abort|cancel|stop|release|clean|free|shutdown|disconnect|exit", re.I)
_READERS = frozenset({"aiter_lines", "aiter_bytes", "aiter_raw", "aiter_text", "iter_any", "iter_chunked", "iter_chunks"})


@rule(
    "HU003",
    "stream-not-closed",
    Severity.WARNING,
    summary="A streaming generator reads from an engine and never closes the engine's stream.",
    why="""When the client disconnects between two chunks, the generator is abandoned. Without `finally` or `async with`,
    the engine's stream closes only when the garbage collector runs, and stays open while a traceback, a task or a cycle
    still references it; until then the engine computes.""",
    hint="iterate inside `async with` (or `contextlib.aclosing`), close in `finally`, or return `hangup.stream(...)`",
    bad="""
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def tokens(messages):
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=500)
            async for chunk in stream:
                yield chunk.choices[0].delta.content or ""

        @app.post("/chat")
        async def chat(messages: list):
            return StreamingResponse(tokens(messages))
        """,
    good="""
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def tokens(messages):
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=500)
            async with stream:
                async for chunk in stream:
                    yield chunk.choices[0].delta.content or ""

        @app.post("/chat")
        async def chat(messages: list):
            return StreamingResponse(tokens(messages))
        """,
)
def stream_not_closed(module: Module) -> Iterator[Hit]:
    inference = Inference.of(module)
    if not inference:
        return
    for function in module.functions:
        if not function.is_async_generator or not feeds_client(module, function):
            continue
        for loop, frame in function.loops:
            if not isinstance(loop, ast.AsyncFor) or not any(y.inside(loop) for y in function.yields):
                continue
            source = _upstream(module, inference, loop.iter, function)
            if source is not None and not _closed(module, frame) and not _is_passed_on(function, loop.iter):
                yield loop, f"the stream of `{source.name}` is not closed when the client disconnects"


def _upstream(module: Module, inference: Inference, iterated: ast.expr, function: Function, depth: int = 3) -> Site | None:
    """Return the inference call whose stream is iterated; not for the module's own generators, which have their own loop."""
    site = module.site(iterated)
    if isinstance(iterated, ast.Await):
        site = module.site(iterated.value)
    if site is not None:
        if id(site.node) in inference.direct:
            return site
        if site.name.rpartition(".")[2] in _READERS and isinstance(site.node.func, ast.Attribute) and depth:
            return _upstream(module, inference, site.node.func.value, function, depth - 1)
        return None
    if isinstance(iterated, ast.Name) and depth:
        for value in module.values_of(iterated, function):
            found = _upstream(module, inference, value, function, depth - 1)
            if found is not None:
                return found
    return None


def _is_passed_on(function: Function, iterated: ast.expr) -> bool:
    """Return whether an outer function passes its stream to other code, which may close it."""
    if not isinstance(iterated, ast.Name) or iterated.id in function.assigned:
        return False
    outside = (site for outer in function.around() if outer is not function for site in outer.calls)
    calls = (site.node for site in outside if site.name not in {"anext", "aiter", "print", "isinstance"})
    arguments = (argument for call in calls for argument in (*call.args, *(k.value for k in call.keywords)))
    return any(isinstance(n, ast.Name) and n.id == iterated.id for argument in arguments for n in ast.walk(argument))


def _closed(module: Module, frame: Frame) -> bool:
    """Return whether something around the loop, or in a `finally` after it, closes the stream."""
    for outer in frame.outward():
        node = outer.node
        if isinstance(node, (ast.With, ast.AsyncWith)) and not all(_only_bounds(module, i.context_expr) for i in node.items):
            return True
        if isinstance(node, ast.Try) and outer.part == "body":
            endings = [node.finalbody, *(h.body for h in node.handlers if catches_cancel(module, h))]
            if any(_closes_stream(module, body) for body in endings):
                return True
    return False


def _only_bounds(module: Module, context: ast.expr) -> bool:
    """Return whether a context only limits time or takes a lock, and closes nothing."""
    return bool(re.search(r"timeout|semaphore|lock|span|suppress|limiter|trace", module.dotted(context), re.I))


def _closes_stream(module: Module, body: list[ast.stmt]) -> bool:
    calls = (n for statement in body for n in ast.walk(statement) if isinstance(n, ast.Call))
    return any(_CLOSES.search(module.dotted(call.func)) for call in calls)


def catches_cancel(module: Module, handler: ast.ExceptHandler) -> bool:
    """Return whether an except clause catches CancelledError or GeneratorExit."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {module.dotted(kind).rpartition(".")[2] if kind is not None else "BaseException" for kind in kinds}
    return bool(names & {"BaseException", "CancelledError", "GeneratorExit", "get_cancelled_exc_class"})


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

        app = FastAPI()

        @app.post("/chat")
        async def chat(request: Request, prompt: str, source):
            text = ""
            async for token in source(prompt):
                if await request.is_disconnected():
                    return None
                text += token
            return {"text": text}
        """,
    good="""
        import hangup
        from fastapi import FastAPI, Request

        app = FastAPI()

        async def collect(tokens):
            return "".join([token async for token in tokens])

        @app.post("/chat")
        async def chat(request: Request, prompt: str, source):
            return {"text": await hangup.run(request, collect(source(prompt)), total_s=120)}
        """,
)
def disconnect_polled_late(module: Module) -> Iterator[Hit]:
    for function in module.functions:
        polls = [s for s in function.calls if s.name.endswith("is_disconnected") and s.awaited]
        if not polls or function.yields or _has_watcher(function):
            continue
        if all(isinstance(_loop_around(site), ast.AsyncFor) for site in polls):
            yield polls[0].node, "nobody looks at the client until the engine has sent something"


def _loop_around(site: Site) -> ast.AST | None:
    return next((f.node for f in site.frame.outward() if isinstance(f.node, (ast.For, ast.AsyncFor, ast.While))), None)


def _has_watcher(function: Function) -> bool:
    """Return whether the function starts a task beside the loop, which may watch the client."""
    spawners = {"create_task", "start_soon", "wait"}
    return any(site.name.rpartition(".")[2] in spawners for outer in function.around() for site in outer.calls)


@rule(
    "HU014",
    "stream-computed-whole",
    Severity.WARNING,
    summary="A streaming response whose whole content is computed before its first byte.",
    why="""The client waits as long as for a non-streaming answer and may hit its read timeout, and nothing notices a
    hang-up in between. Request a stream from the engine and forward its chunks as they arrive.""",
    hint="call the engine with `stream=True` and yield each chunk",
    bad="""
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def answer(messages):
            result = await client.chat.completions.create(model="m", messages=messages, max_tokens=500)
            yield result.choices[0].message.content

        @app.post("/chat")
        async def chat(messages: list):
            return StreamingResponse(answer(messages))
        """,
    good="""
        from fastapi import FastAPI
        from fastapi.responses import StreamingResponse
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        async def answer(messages):
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=500)
            async with stream:
                async for chunk in stream:
                    yield chunk.choices[0].delta.content or ""

        @app.post("/chat")
        async def chat(messages: list):
            return StreamingResponse(answer(messages))
        """,
    default=False,  # its precision is unknown: see docs/lint-field-report.md
)
def stream_computed_whole(module: Module) -> Iterator[Hit]:
    inference = Inference.of(module)
    if not inference:
        return
    for function in module.functions:
        direct = [s for s in function.calls if id(s.node) in inference.direct]
        whole = [s for s in direct if s.awaited and streams(s) is False and _loop_around(s) is None]
        if not whole or len(whole) != len(direct):
            continue
        if function.is_async_generator and feeds_client(module, function) and not _yields_in_loop(function):
            yield whole[0].node, f"`{whole[0].name}` is awaited in full before the first chunk is sent"
        elif not function.yields and any(_wraps_whole(s) for s in function.calls):
            yield whole[0].node, f"`{whole[0].name}` is awaited in full and then sent as a stream"


def _yields_in_loop(function: Function) -> bool:
    return any(isinstance(f.node, (ast.AsyncFor, ast.While)) for y in function.yields for f in y.outward())


def _wraps_whole(site: Site) -> bool:
    """Return whether the stream has only one chunk: StreamingResponse(iter([text]))."""
    first = site.node.args[0] if site.node.args else None
    return is_streaming_response(site.name) and isinstance(first, ast.Call) and getattr(first.func, "id", "") == "iter"
