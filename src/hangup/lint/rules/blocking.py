"""Rules about calls that block the event loop: while one runs, no client's disconnect is noticed, of this call or any other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.rule import Hit, rule
from hangup.lint.source import Module, Site
from hangup.lint.vocabulary import Inference

_SYNC_CLIENTS = frozenset({"OpenAI", "AzureOpenAI", "Anthropic", "AnthropicBedrock", "AnthropicVertex", "Groq", "Mistral"})
_SYNC_FUNCTIONS = frozenset(
    {
        "litellm.completion",
        "litellm.text_completion",
        "ollama.chat",
        "ollama.generate",
        "openai.ChatCompletion.create",
        "openai.Completion.create",
    }
)
_REQUESTS = frozenset({"requests.post", "requests.get", "requests.request"})
_LOCAL_ENGINES = frozenset({"transformers", "torch", "llama_cpp", "mlx_lm"})
_LOCAL_VERBS = frozenset({"generate", "create_chat_completion", "create_completion"})


@rule(
    "HU005",
    "blocking-inference",
    Severity.ERROR,
    summary="A blocking engine or SDK call in an async function.",
    why="""The call blocks the event loop until it returns: no hang-up is noticed, no timeout fires, and every other
    stream of the process stalls.""",
    hint="use the async client, or `asyncio.to_thread` with a `hangup.CancelToken` that the engine checks between steps",
    bad="""
        from fastapi import FastAPI
        from openai import OpenAI

        app = FastAPI()
        client = OpenAI(timeout=60)

        @app.post("/chat")
        async def chat(messages: list):
            return client.chat.completions.create(model="m", messages=messages, max_tokens=500)
        """,
    good="""
        import hangup
        from fastapi import FastAPI, Request
        from openai import AsyncOpenAI

        app = FastAPI()
        client = AsyncOpenAI(timeout=60)

        @app.post("/chat")
        async def chat(request: Request, messages: list):
            call = client.chat.completions.create(model="m", messages=messages, max_tokens=500)
            return await hangup.run(request, call, total_s=60)
        """,
)
def blocking_inference(module: Module) -> Iterator[Hit]:
    inference = Inference.of(module)
    for site in inference.direct.values():
        if not site.function.is_async or site.awaited:
            continue
        if _blocks(module, site):
            yield site.node, f"`{site.name}` blocks the event loop until the engine has finished"


def _blocks(module: Module, site: Site) -> bool:
    if site.name in _SYNC_FUNCTIONS or site.name in _REQUESTS:
        return True
    func = site.node.func
    if not isinstance(func, ast.Attribute):
        return False
    if module.packages & _LOCAL_ENGINES and func.attr in _LOCAL_VERBS and _is_local(module, site):
        return True
    root = _client_of(func)
    values = module.values_of(root, site.function) if root is not None else []
    return bool(values) and all(_is_sync_client(module, value) for value in values)


def _client_of(func: ast.Attribute) -> ast.AST | None:
    """Return the `client` in client.chat.completions.create, or the `self.client` in self.client.messages.create."""
    node: ast.expr = func
    while isinstance(node, ast.Attribute) and node.attr in {
        "create",
        "parse",
        "stream",
        "completions",
        "chat",
        "messages",
        "responses",
        "beta",
    }:
        node = node.value
    return node if isinstance(node, (ast.Name, ast.Attribute)) else None


def _is_sync_client(module: Module, value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and module.dotted(value.func).rpartition(".")[2] in _SYNC_CLIENTS


def _is_local(module: Module, site: Site) -> bool:
    """Return whether the model runs in this process: called with tensors, or created by from_pretrained or Llama here."""
    if site.keyword("input_ids", "max_new_tokens", "streamer", "generation_config", "logits_processor") is not None:
        return True
    func = site.node.func
    assert isinstance(func, ast.Attribute)
    makers = [module.dotted(v.func) for v in module.values_of(func.value, site.function) if isinstance(v, ast.Call)]
    return any(name.endswith(("from_pretrained", "llama_cpp.Llama", "vllm.LLM")) for name in makers)
