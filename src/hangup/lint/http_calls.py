"""Requests that make an engine compute: by the address that they are sent to, or by their body."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hangup.lint.source import Module, Site
from hangup.lint.switches import is_environment
from hangup.lint.text import last_name

SENDS = re.compile(r"(^|_)(post|request|fetch|send)(_|$)")  # a function that sends a request: post_with_retry(url, body)
HTTP_VERBS = frozenset({"post", "stream", "request", "send", "build_request", "fetch", "urlopen"})
_PATH = re.compile(
    r"(/chat/completions|/v1/completions|(^|[^/])/completions|/v1/messages|/v1/responses|/api/chat|/api/generate|:generateContent"
    r"|/worker_generate\w*|(^|//[^/]+)(/v\d)?/(generate|generate_stream))/?(\?.*)?$"
)
# Addresses and bodies of requests that only fetch a token or look something up.
_NO_GENERATION = re.compile(
    r"(^|[/_.-])(oauth2?|tokens?|auth|login|logout|refresh|register|models|health|metrics|count_tokens|tokeni[sz]e|embeddings?|search)"
    r"([/_-]?(url|uri|endpoint|address))?/?(\?.*)?$",
    re.I,
)
_KEYS_OF_TOKENS = frozenset("grant_type refresh_token client_secret code_verifier redirect_uris client_assertion".split())


def is_http_call(module: Module, site: Site) -> bool:
    if site.name.rpartition(".")[2] not in HTTP_VERBS or site.keyword("text") is not None:
        return False
    return names_api(module, site) or any(_is_generation(value) for value in bodies(module, site))


def names_api(module: Module, site: Site) -> bool:
    texts = [text for node in _addresses(module, site) for text in _tails(module, site, node)]
    return any(_PATH.search(text) and not (text.endswith("/messages") and _is_of_others(module, site)) for text in texts)


def _is_of_others(module: Module, site: Site) -> bool:
    """Return whether the body of a request to `/v1/messages` is of a service that sends messages: it names no model."""
    sent = list(bodies(module, site))
    keys = {key.value for body in sent if isinstance(body, ast.Dict) for key in body.keys if isinstance(key, ast.Constant)}
    whole = all(isinstance(body, ast.Dict) and None not in body.keys for body in sent)
    return bool(keys) and whole and not keys & {"model", "messages", "max_tokens"}


def forwards(module: Module, site: Site) -> bool:
    """Return whether a call sends a request to an address that is not known here: inference, if a handler for inference
    does."""
    receiver, _, verb = site.name.rpartition(".")
    if verb not in {"post", "request", "send", "fetch"} or isinstance(site.statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    if not re.search(r"client|session|http|requests", receiver.lower()):
        return False
    if _is_lookup(module, site):
        return False
    return verb == "send" or site.keyword("json", "content", "data") is not None


def _is_lookup(module: Module, site: Site) -> bool:
    """Return whether a request asks for a token or for a list, by its body or its address: no generation."""
    addresses = _addresses(module, site)
    if any(_NO_GENERATION.search(ast.unparse(node)) for node in addresses if isinstance(node, (ast.Name, ast.Attribute))):
        return True
    if any(_NO_GENERATION.search(text) for node in addresses for text in _tails(module, site, node)):
        return True
    return any(
        isinstance(key, ast.Constant) and key.value in _KEYS_OF_TOKENS
        for body in bodies(module, site)
        if isinstance(body, ast.Dict)
        for key in body.keys
    )


def _addresses(module: Module, site: Site) -> list[ast.expr | None]:
    """Return what may be the address of a request, also of one that was made before: urlopen(Request(url, data))."""
    made = _made_request(module, site)
    if made is not None:
        return [*made.args[:1], next((k.value for k in made.keywords if k.arg == "url"), None)]
    return [*site.node.args[:2], site.keyword("url")]


def _made_request(module: Module, site: Site) -> ast.Call | None:
    """Return the call that made what urlopen() is given."""
    given = site.node.args[0] if site.node.args and site.name.rpartition(".")[2] == "urlopen" else None
    values = module.values_of(given, site.function) if isinstance(given, ast.Name) else [given]
    return next((v for v in values if isinstance(v, ast.Call) and last_name(v.func) == "Request"), None)


def _tails(module: Module, site: Site, node: ast.expr | None, depth: int = 2) -> Iterator[str]:
    """Yield the constant text that an address ends with: "/generate" for f"{url}/generate", also through a variable."""
    if isinstance(node, ast.JoinedStr) and node.values:
        last, before = node.values[-1], _text(node.values[-2]) if len(node.values) > 1 else ""
        if isinstance(last, ast.FormattedValue):
            yield before.removesuffix("?key=")  # Gemini's address ends with the key
            if before.endswith("/"):  # f"{url}/{path}"
                yield from (before + text for text in _tails(module, site, last.value, depth - 1))
            return
        node = last
    if isinstance(node, ast.BinOp):
        node = node.right
    if isinstance(node, ast.BoolOp):  # os.getenv("MODEL_URL") or "http://localhost:11434/api/generate"
        node = node.values[-1]
    if isinstance(node, ast.Call) and is_environment(node):  # it is the default, as long as nobody sets another
        node = next((k.value for k in node.keywords if k.arg == "default"), node.args[1] if len(node.args) > 1 else None)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, (ast.Name, ast.Attribute)) and depth:
        for value in module.values_of(node, site.function)[:4]:
            yield from _tails(module, site, value, depth - 1)


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def bodies(module: Module, site: Site) -> Iterator[ast.expr]:
    """Yield what may be the body of a request, also through a variable, or before a function of the project changed it."""
    made = _made_request(module, site)
    if made is None:
        yield from _values(module, site, site.keyword("json", "data"))
        return
    for body in _values(module, site, next((k.value for k in made.keywords if k.arg == "data"), None)):
        written: ast.expr | None = body
        while isinstance(written, ast.Call):  # json.dumps(body).encode()
            inner = written.func.value if isinstance(written.func, ast.Attribute) and written.func.attr == "encode" else None
            written = inner or (written.args[0] if written.args else None)
        yield from _values(module, site, written)


def _values(module: Module, site: Site, node: ast.expr | None, depth: int = 2) -> Iterator[ast.expr]:
    """Yield what an expression may stand for, and what a function was given that made it: `fitted(provider, body)`."""
    values = module.values_of(node, site.function)[:4] if isinstance(node, ast.Name) else [node] if node is not None else []
    for value in values:
        yield value
        for argument in value.args if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and depth > 1 else ():
            yield from _values(module, site, argument, depth - 1)


def gives_generation(module: Module, site: Site) -> bool:
    """Return whether a call is given the body of a generation, which it may send."""
    given = (*site.node.args, *(keyword.value for keyword in site.node.keywords))
    return any(_is_generation(value) for argument in given for value in _values(module, site, argument))


def _is_generation(body: ast.expr) -> bool:
    """Return whether a request's body is that of a generation: a model with messages, or a prompt with a token limit."""
    if not isinstance(body, ast.Dict):
        return False
    keys = {k.value for k in body.keys if isinstance(k, ast.Constant)}
    if "messages" in keys:
        return bool(keys & {"model", "max_tokens", "stream", "temperature"})
    if "contents" in keys:
        parts = any(isinstance(node, ast.Constant) and node.value == "parts" for node in ast.walk(body))
        return parts or bool(keys & {"generationConfig", "systemInstruction", "system_instruction", "safetySettings"})
    if "inputs" in keys and "parameters" in keys:
        return True
    return "prompt" in keys and bool(keys & {"max_tokens", "n_predict", "max_new_tokens", "stream"})
