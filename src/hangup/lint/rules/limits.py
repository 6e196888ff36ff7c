"""Rules about work without a limit on time, tokens or attempts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.rule import Hit, rule
from hangup.lint.source import Module, Site
from hangup.lint.vocabulary import Inference, serves

_HTTP_CLIENTS = ("httpx.AsyncClient", "httpx.Client", "AsyncOpenAI", "openai.OpenAI", "AsyncAnthropic", "AsyncAzureOpenAI")
_REQUESTS = frozenset({"requests.post", "requests.request"})


@rule(
    "HU006",
    "no-timeout",
    Severity.WARNING,
    summary="A call to an engine, or the HTTP client for it, has no timeout.",
    why="""If the cancellation is lost or the engine hangs, only a timeout ends the call. In httpx, aiohttp and the SDKs,
    `timeout=None` means no timeout; `requests` has none by default.""",
    hint="set a read timeout that fits the longest pause between two tokens",
    bad="""
        import httpx

        client = httpx.AsyncClient(base_url="http://engine:8000", timeout=None)

        async def chat(body):
            return await client.post("/v1/chat/completions", json=body)
        """,
    good="""
        import httpx

        client = httpx.AsyncClient(base_url="http://engine:8000", timeout=httpx.Timeout(10, read=60))

        async def chat(body):
            return await client.post("/v1/chat/completions", json=body)
        """,
)
def no_timeout(module: Module) -> Iterator[Hit]:
    inference = Inference.of(module)
    for site in module.calls():
        name = site.name
        if name in _REQUESTS and id(site.node) in inference.direct:
            if site.keyword("timeout") is None and not site.has_double_star:
                yield site.node, f"`{name}` may wait forever: it has no timeout by default"
        elif name == "httpx.Timeout":
            if _is_none(site.node.args[0] if site.node.args else site.keyword("timeout")) and site.keyword("read") is None:
                yield site.node, "`httpx.Timeout(None)` lets a read wait forever"
        elif name == "aiohttp.ClientTimeout":
            if _is_none(site.keyword("total")) and site.keyword("sock_read") is None and len(site.node.args) < 2:
                yield site.node, "`ClientTimeout(total=None)` without `sock_read` waits forever"
        elif _is_none(site.keyword("timeout")) and (name.endswith(_HTTP_CLIENTS) or id(site.node) in inference.direct):
            yield site.node, f"`timeout=None` lets `{name}` wait forever"


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


_CAPS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "num_predict",
    "options",
    "extra_body",
    "config",
    "generation_config",
)
_CAPPED_TAILS = (
    "completions.create",
    "completions.parse",
    "completions.stream",
    "responses.create",
    "responses.stream",
    "responses.parse",
    "ChatCompletion.create",
    "ChatCompletion.acreate",
)
_CAPPED_FUNCTIONS = frozenset({"litellm.completion", "litellm.acompletion", "ollama.chat", "ollama.generate"})


@rule(
    "HU007",
    "no-max-tokens",
    Severity.WARNING,
    summary="A generation without a token limit.",
    why="""The token limit is the last defence: if the client's hang-up goes unnoticed, the generation still ends, at a
    known cost. Without it, most engines continue to the end of the context window.""",
    hint="pass `max_tokens` (or `max_completion_tokens`, `max_output_tokens`)",
    bad="""
        from openai import AsyncOpenAI

        client = AsyncOpenAI(timeout=60)

        async def answer(messages):
            return await client.chat.completions.create(model="m", messages=messages)
        """,
    good="""
        from openai import AsyncOpenAI

        client = AsyncOpenAI(timeout=60)

        async def answer(messages):
            return await client.chat.completions.create(model="m", messages=messages, max_tokens=500)
        """,
)
def no_max_tokens(module: Module) -> Iterator[Hit]:
    serving = serves(module)
    for site in Inference.of(module).direct.values():
        if not (site.name in _CAPPED_FUNCTIONS or site.name.endswith(_CAPPED_TAILS)):
            continue
        if not (serving or site.function.is_async) or site.has_double_star or len(site.node.args) > 2:
            continue
        if site.keyword(*_CAPS) is None and site.keyword("messages", "prompt", "input") is not None:
            yield site.node, f"`{site.name}` may generate to the end of the context window"


@rule(
    "HU012",
    "retries-without-budget",
    Severity.WARNING,
    summary="Inference is retried without a limit.",
    why="""Each retry is a whole generation. Without a limit on attempts or on time, an overloaded engine gets the same
    work again and again, for clients that disconnected long ago.""",
    hint="limit the attempts and the time (tenacity: `stop=stop_after_attempt(3) | stop_after_delay(30)`)",
    bad="""
        from openai import AsyncOpenAI
        from tenacity import retry, wait_random_exponential

        client = AsyncOpenAI(timeout=60)

        @retry(wait=wait_random_exponential(max=60))
        async def answer(messages):
            return await client.chat.completions.create(model="m", messages=messages, max_tokens=500)
        """,
    good="""
        from openai import AsyncOpenAI
        from tenacity import retry, stop_after_attempt, wait_random_exponential

        client = AsyncOpenAI(timeout=60)

        @retry(wait=wait_random_exponential(max=60), stop=stop_after_attempt(3))
        async def answer(messages):
            return await client.chat.completions.create(model="m", messages=messages, max_tokens=500)
        """,
)
def retries_without_budget(module: Module) -> Iterator[Hit]:
    inference = Inference.of(module)
    if not inference:
        return
    for function in module.functions:
        makes = [site for site in function.calls if inference.has(site)]
        if not makes:
            continue
        for decorator in function.decorators:
            if _retries_for_ever(module, decorator):
                yield decorator, f"`{function.name}` is retried without a limit"
        for loop, _ in function.loops:
            if isinstance(loop, ast.While) and _is_true(loop.test) and _repeats(module, loop, makes):
                yield loop, f"`{makes[0].name}` is retried without a limit"


def _retries_for_ever(module: Module, decorator: ast.expr) -> bool:
    name = module.dotted(decorator)
    given = {k.arg for k in decorator.keywords} if isinstance(decorator, ast.Call) else set()
    if None in given:
        return False
    if name in {"tenacity.retry"}:
        return "stop" not in given
    return name in {"backoff.on_exception", "backoff.on_predicate"} and not given & {"max_tries", "max_time"}


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)


def _repeats(module: Module, loop: ast.While, makes: list[Site]) -> bool:
    """Return whether the loop is `while True: try: inference except: again`, with no exit from any except clause and no
    counter.
    """
    for node in loop.body:
        if not isinstance(node, ast.Try):
            continue
        tried = {id(n) for s in node.body for n in ast.walk(s)}
        if not any(id(site.node) in tried for site in makes) or not _returns(node.body):
            continue
        rest = [n for s in loop.body for n in ast.walk(s)]
        counts = any(isinstance(n, (ast.AugAssign, ast.Compare)) for n in rest)
        leaves = any(
            isinstance(n, (ast.Raise, ast.Break, ast.Return)) for h in node.handlers for s in h.body for n in ast.walk(s)
        )
        if node.handlers and not counts and not leaves:
            return True
    return False


def _returns(body: list[ast.stmt]) -> bool:
    return any(isinstance(n, (ast.Return, ast.Break)) for s in body for n in ast.walk(s))
