"""Maps a path to the class that builds its answers."""

from __future__ import annotations

from hangup.fake_engine.anthropic_responses import FakeMessages
from hangup.fake_engine.native_responses import FakeLlamaCpp, FakeOllama, FakeOllamaGenerate, FakeSglang, FakeTgi, FakeTgiStream
from hangup.fake_engine.openai_responses import FakeChat, FakeCompletions, FakeResponses
from hangup.fake_engine.response import FakeResponse, Json

RESPONSE_CLASSES: dict[str, type[FakeResponse]] = {
    "/v1/chat/completions": FakeChat,
    "/v1/completions": FakeCompletions,
    "/v1/responses": FakeResponses,
    "/v1/messages": FakeMessages,
    "/completion": FakeLlamaCpp,
    "/generate": FakeTgi,
    "/generate_stream": FakeTgiStream,
    "/api/chat": FakeOllama,
    "/api/generate": FakeOllamaGenerate,
}


def response_class(path: str, request: Json) -> type[FakeResponse] | None:
    if path == "/generate" and "inputs" not in request:
        return FakeSglang
    return RESPONSE_CLASSES.get(path)
