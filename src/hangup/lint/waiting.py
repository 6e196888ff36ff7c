"""Whether an inference call blocks its thread until the engine has finished, by how it is written."""

from __future__ import annotations

import ast
import re

from hangup.lint.facts import UNKNOWN
from hangup.lint.source import Module, Site
from hangup.lint.vocabulary import (
    ASYNC_CLIENTS,
    BLOCKING_AGENTS,
    CLIENTS,
    ENGINE_VERBS,
    GENERATION_KEYWORDS,
    LOCAL_ENGINES,
    LOCAL_MODELS,
    STREAM_VERBS,
    SYNC_CLIENTS,
    maker_of,
)
from hangup.lint.walking import walk

_ASYNC_VERBS = re.compile(
    r"^(a(completion|text_completion|invoke|stream\w*|batch|chat|complete|query|generate\w*|create|run|predict|call|responses)"
    r"|\w+_async|async_\w+|a_initiate_chat|get_chat_message_contents?)$"
)
_BLOCKING_VERBS = frozenset(
    "invoke batch predict run_sync generate_content create_chat_completion kickoff query stream_chat invoke_model converse"
    " generate_text call_function_sync"
    " converse_stream invoke_model_with_response_stream invoke_agent retrieve_and_generate initiate_chat".split()
)
_BLOCKING_FUNCTIONS = frozenset(
    "litellm.completion litellm.text_completion ollama.chat ollama.generate agents.Runner.run_sync replicate.run"
    " openai.ChatCompletion.create openai.Completion.create openai.chat.completions.create openai.completions.create"
    " openai.responses.create dashscope.Generation.call mlx_lm.generate mlx_vlm.generate".split()
)
_FIELDS = frozenset("choices content text output_text candidates message generations".split())  # of an answer
_ASYNC_CLIENTS_OF_OTHERS = frozenset({"ollama.AsyncClient", "cohere.AsyncClient"})


def blocks(module: Module, site: Site, verb: str) -> int:
    """Return whether an inference call blocks its thread: 1, 0 for a coroutine or an async iterator, or UNKNOWN."""
    if site.awaited or _ASYNC_VERBS.match(verb) or is_poll(site, verb):
        return 0
    if ".aio." in site.name:
        return 0  # of Google's client, the part with coroutines: client.aio.models.generate_content
    if isinstance(site.statement, (ast.AsyncWith, ast.AsyncFor)) and _is_entered(site):
        return 0  # `async with agent.run_stream(...)` takes an asynchronous API
    if site.name in _BLOCKING_FUNCTIONS or site.name.startswith("requests.") or verb == "urlopen":
        return 1
    made = maker_of(module, site)
    last = made.rpartition(".")[2]
    if last in ASYNC_CLIENTS or made in _ASYNC_CLIENTS_OF_OTHERS:
        return 0
    if last in SYNC_CLIENTS or made in CLIENTS or last in LOCAL_MODELS or last == "pipeline" or made in BLOCKING_AGENTS:
        return 1
    if verb in _BLOCKING_VERBS:
        return 1
    if verb in ENGINE_VERBS and module.packages & LOCAL_ENGINES and site.keyword(*GENERATION_KEYWORDS[:5]) is not None:
        return 1
    if verb == "generate" and site.has_double_star and "transformers" in module.packages and "vllm" not in module.packages:
        return 1
    if verb in STREAM_VERBS and isinstance(site.statement, ast.For) and site.statement.iter is site.node:
        return 1  # a plain loop reads it
    if not site.function.is_async and isinstance(site.statement, (ast.Assign, ast.For, ast.With, ast.AnnAssign)):
        return 1  # its result is used at once
    if isinstance(site.statement, ast.With) and any(item.context_expr is site.node for item in site.statement.items):
        return 1  # `with client.messages.stream(...)`: an asynchronous one takes `async with`
    return 1 if _is_read_at_once(site) else UNKNOWN


def _is_read_at_once(site: Site) -> bool:
    """Return whether a function reads the answer of a call that it does not await: no coroutine has `choices`."""
    target = site.statement.targets[0] if isinstance(site.statement, ast.Assign) else None
    name = target.id if isinstance(target, ast.Name) and getattr(site.statement, "value", None) is site.node else ""
    nodes = list(walk(site.function.node if name else site.statement))
    for node in nodes if name else ():
        match node:
            case ast.Await(value=ast.Name(id=awaited)) | ast.AsyncFor(iter=ast.Name(id=awaited)) if awaited == name:
                return False
    return any(_reads_answer(node, name, site.node) or (bool(name) and _takes_items(node, name)) for node in nodes)


def _takes_items(node: ast.AST, name: str) -> bool:
    """Return whether a node takes items of what has this name: no coroutine and no asynchronous iterator has any."""
    match node:
        case (
            ast.Subscript(value=ast.Name(id=read))
            | ast.For(iter=ast.Name(id=read))
            | ast.comprehension(iter=ast.Name(id=read), is_async=0)
        ):
            return read == name
    return False


def _reads_answer(node: ast.AST, name: str, call: ast.Call) -> bool:
    """Return whether a node reads a field of a call's answer, or of what it was assigned to."""
    match node:
        case ast.Attribute(value=read, attr=key) | ast.Subscript(value=read, slice=ast.Constant(value=str(key))):
            return key in _FIELDS and (read is call or (bool(name) and isinstance(read, ast.Name) and read.id == name))
    return False


def is_poll(site: Site, verb: str) -> bool:
    """Return whether a call only asks how far the engine is, in a loop that awaits something in between."""
    if verb != "retrieve" or not site.function.is_async:
        return False
    loops = [frame.node for frame in site.frame.outward() if isinstance(frame.node, ast.While)]
    return any(isinstance(node, ast.Await) for loop in loops for node in walk(loop))


def _is_entered(site: Site) -> bool:
    """Return whether `async with` or `async for` takes what this call returns, not something in its arguments or its body."""
    statement = site.statement
    if isinstance(statement, ast.AsyncWith):
        return any(item.context_expr is site.node for item in statement.items)
    return isinstance(statement, ast.AsyncFor) and statement.iter is site.node
