"""Whether a file may hold inference, judged from its text: what `vocabulary` sees in a tree shows in the text as well."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

from hangup.lint import vocabulary as v
from hangup.lint.http_calls import HTTP_VERBS
from hangup.lint.sdks import PACKAGES

# What a file says, as bits.
INFERENCE = 1  # it may call inference
SERVING = 2  # it serves requests
BASES = 4  # it holds classes for others to complete
MAKES = 8  # it may make a model or a chain, which another file may call
USES = 16  # it may call a model or a chain that another file makes
IGNORES = 32  # it may hold a comment that ignores findings
ROUTES = 64  # it has a handler whose path is one of inference
APPLICATION = 256  # it makes an application that serves, or gives it routers
FORWARDS = 128  # it may send requests to an address that is not known: inference, if such a handler does


def _b(names: Iterable[str]) -> frozenset[bytes]:
    return frozenset(name.encode() for name in names)


_MODELS = re.compile(rb"llm|chain|model|agent|graph|chat|runnable|executor|workflow|engine|llama|bot|[)\]]$", re.I)
_ENGINES = re.compile(rb"engine|llm|model|llama|[)\]]$", re.I)
_TEAMS = re.compile(rb"agent|crew|team|[)\]]$", re.I)
_TALKERS = re.compile(rb"client|session|http|requests", re.I)
_NOT_MODELS = re.compile(rb"(?:^|_)(?:" + "|".join(sorted(v.NOT_MODELS)).encode() + rb")(?:_|$)", re.I)
_OTHER_VERBS = (
    v.OWN_VERBS | v.CHAIN_VERBS | v.AGENT_VERBS | v.ENGINE_VERBS | v.INDEX_VERBS | v.MADE_VERBS
    | {"text_generation", "chat_completion", "send_message", "send_message_async", "run_async", "retrieve"}
)  # fmt: skip
_VERBS = _b(_OTHER_VERBS | HTTP_VERBS)
_ATTRIBUTE = re.compile(rb"\.(" + "|".join(sorted(_OTHER_VERBS | HTTP_VERBS, key=len, reverse=True)).encode() + rb")\b")
_SDK = re.compile(
    rb"ompletions?\s*\.\s*(?:create|parse|stream|acreate)\b|essages\s*\.\s*(?:create|stream)\b|esponses\s*\.\s*(?:create|stream|parse)\b"
    rb"|hat\s*\.\s*(?:complete|complete_async|stream_async)\b"
)
_SDK_VERBS = _b("create parse stream acreate complete complete_async stream_async".split())
_SDK_PARTS = (b"ompletion", b"essages", b"esponses", b"hat.")
_NO_CODE = (b">>>", b"...", b"#")
_RECEIVER = re.compile(rb"(\w+|[)\]])\s*$")
_PATH = re.compile(
    rb"/(?:completions|v1/messages|v1/responses|api/chat|api/generate|worker_generate\w*|generate|generate_stream)/?[\"'?]|:generateContent"
)
_PATH_WORDS = frozenset(b"completions messages responses chat generate generate_stream".split())
_KEY_WORDS = frozenset(b"messages prompt contents inputs".split())
_KEYS = re.compile(rb"[\"'](?:messages|prompt|contents|inputs)[\"']\s*:")
_MAKERS = _b(v.CHAINS | v.LOCAL_MODELS)
_CHAINED = _b(v.CHAINS) | _b({"with_structured_output", "bind_tools", "with_retry", "with_config"})
_LOCAL_MODELS = _b(v.LOCAL_MODELS)
_FUNCTIONS = {
    "litellm": b"Router completion acompletion text_completion atext_completion responses aresponses".split(),
    "ollama": [b"chat", b"generate"],
    "agents": [b"Runner"],
    "replicate": [b"run"],
    "cohere": [b"Client", b"ClientV2", b"AsyncClient"],
    "dashscope": [b"Generation"],
    "mlx_lm": [b"generate", b"stream_generate"],
    "mlx_vlm": [b"generate", b"stream_generate"],
    "claude_agent_sdk": [b"query"],
    "claude_code_sdk": [b"query"],
    "transformers": [b"pipeline"],
    "strands": [b"Agent"],
    "llama_cpp": [b"Llama"],
    "ctransformers": [b"AutoModelForCausalLM"],
}


def of(data: bytes, words: frozenset[bytes], roots: frozenset[str]) -> int:
    """Return the bits that concern inference: never too few, as far as the linter's own vocabulary goes, often too many."""
    found = 0
    if (
        any(is_code(data, name) for name in words & _MAKERS)
        or (b"add_node" in words and "langgraph" in roots)
        or (b"Agent" in words and roots & v.AGENT_PACKAGES)
    ):
        found |= MAKES
    names_api = cache(lambda: _names_api(data, words))
    if _by_words(data, words, roots) or (b"urlopen" in words and names_api()):
        found |= INFERENCE
    if not words.isdisjoint(_VERBS):
        for match in _ATTRIBUTE.finditer(data):
            found |= _attribute(match, data, words, roots, names_api)
    return found


def _names_api(data: bytes, words: frozenset[bytes]) -> bool:
    """Return whether a file has the address of an inference API, or the body of a request to one."""
    if not words.isdisjoint(_KEY_WORDS) and _KEYS.search(data):  # a look at the words is much faster than the search
        return True
    return (not words.isdisjoint(_PATH_WORDS) or b"worker_generate" in data or b":generateContent" in data) and _PATH.search(
        data
    ) is not None


def is_code(data: bytes, name: bytes) -> bool:
    """Return whether a name is used somewhere else than in comments and in the examples of docstrings."""
    place = data.find(name)
    while place >= 0:
        after = data[place + len(name) : place + len(name) + 1]
        if not (after.isalnum() or after == b"_") and not data[data.rfind(b"\n", 0, place) + 1 : place].lstrip().startswith(
            _NO_CODE
        ):
            return True
        place = data.find(name, place + 1)
    return False


def _by_words(data: bytes, words: frozenset[bytes], roots: frozenset[str]) -> bool:
    if b"is_disconnected" in words or b"BaseHTTPMiddleware" in words:
        return True
    if (roots - {"google"}) & PACKAGES or "instructor" in roots or ("google" in roots and b"interactions" in words):
        return True
    if any(root in roots and any(name in words for name in names) for root, names in _FUNCTIONS.items()):
        return True
    if roots & (v.FRAMEWORKS_OF_CHAINS | v.LOCAL_ENGINES) and (b"llm(" in data or b"chain(" in data or b"pipeline(" in data):
        return True
    named = [word for word in words if b"llm" in word] if b"llm" in data else []
    if any(word + b"(" in data and v.asks_model(word.decode("latin-1")) for word in named):
        return True
    if b"Thread" in words and b"streamer" in data and b"generate" in data:
        return True
    if not words & _SDK_VERBS or not any(part in data for part in _SDK_PARTS):
        return False  # a search for words is much faster than one for the pattern
    return _SDK.search(data) is not None


def _attribute(
    match: re.Match[bytes], data: bytes, words: frozenset[bytes], roots: frozenset[str], names_api: Callable[[], bool]
) -> int:
    """Return the bits for one attribute whose name is a verb; `names_api` returns whether the file names an inference API."""
    verb = match[1].decode()
    start = match.start()
    line = data[data.rfind(b"\n", 0, start) + 1 : start]
    if line.lstrip().startswith(_NO_CODE):
        return 0
    called = data[match.end() : match.end() + 1] == b"(" and not line.lstrip().startswith(b"@")
    sent = _http(line, verb, names_api) if called and verb in HTTP_VERBS else 0
    if verb not in _OTHER_VERBS or sent & INFERENCE:
        return sent
    receiver = _RECEIVER.search(line or b")") or _RECEIVER.search(b")")
    assert receiver is not None
    name = receiver[1]
    if _NOT_MODELS.search(name) and not words & _MAKERS:
        return sent
    found = sent | USES if verb in v.MADE_VERBS and name not in {b"asyncio", b"uvicorn", b"subprocess", b"anyio"} else sent
    return found | INFERENCE if _may_infer(verb, name, line, words, roots) else found


def _may_infer(verb: str, name: bytes, line: bytes, words: frozenset[bytes], roots: frozenset[str]) -> bool:
    if verb in v.OWN_VERBS:
        return True
    if verb in v.CHAIN_VERBS and (
        roots & v.FRAMEWORKS_OF_CHAINS or words & _CHAINED or (verb in {"invoke", "stream"} and _MODELS.search(name))
    ):
        return True
    if verb in v.AGENT_VERBS and roots & v.AGENT_PACKAGES and (_TEAMS.search(name) or b"Agent" in words):
        return True
    if verb in v.ENGINE_VERBS and (_ENGINES.search(name) or roots & v.LOCAL_ENGINES or words & _LOCAL_MODELS):
        return True
    if verb in {"chat", "create_completion", "generate"} and (words & _LOCAL_MODELS or b"ollama" in line.lower()):
        return True
    if verb in v.INDEX_VERBS and (
        b"engine" in name.lower() or name == b")" or ("llama_index" in roots and (b"llm" in name or b"index" in name))
    ):
        return True
    if verb == "chat" and b"tokenizer" in words:
        return True
    if verb == "run_async":
        return "google" in roots and b"runner" in name.lower()
    if verb == "retrieve":
        return name == b"runs"
    if verb in {"send_message", "send_message_async"}:
        return bool(roots & {"google", "vertexai"})
    return verb in {"text_generation", "chat_completion"} and b"client" in line.lower()


def _http(line: bytes, verb: str, names_api: Callable[[], bool]) -> int:
    if names_api():
        return INFERENCE
    return FORWARDS if verb in {"post", "request", "send", "fetch"} and _TALKERS.search(line) else 0
