"""The fake engine's answers to calls other than chat: scores, classes, audio, images, and tokenization.

These calls take a slot and time, so that a test can hang up in the middle, and the answer reports what the engine received.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from hangup.fake_engine.response import DONE, FakeResponse, Json, sse

PATHS = frozenset(
    [
        *("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/v1/classify", "/classify", "/pooling", "/encode"),
        *("/v1/moderations", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"),
        *("/v1/images/generations", "/v1/images/edits", "/v2/embed", "/invocations"),
    ]
)
_FIELD = re.compile(rb'name="([a-z_]+)"\r\n\r\n([^\r\n]{0,200})\r\n')


def read_form(body: bytes) -> Json:
    """Return the short fields of a multipart form, and the body's size and hash, so that a test can check the rest."""
    fields = {name.decode(): value.decode("utf-8", "replace") for name, value in _FIELD.findall(body)}
    return {**fields, "stream": fields.get("stream") == "true", "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}


class FakePlain(FakeResponse):
    """An answer with one word for each token that the engine computed."""

    def prompt_text(self) -> str:
        return str(self.request.get("input") or self.request.get("query") or "")

    def token(self, choice: int, index: int) -> bytes:
        return sse({"object": "transcription.chunk", "choices": [{"delta": {"content": self.word(choice, index)}}]})

    def closing(self, count: int) -> list[bytes]:
        return [DONE]

    def whole(self, count: int) -> Json:
        received: Json = {name: self.request[name] for name in ("bytes", "sha256") if name in self.request}
        return {"id": self.id, "model": self.model, "text": self.text(0, count), "usage": {"total_tokens": count}, **received}


def tokenizer_answer(path: str, value: Any) -> Json | None:
    """Return the answer to /tokenize or /detokenize, or None for another path."""
    match path.removeprefix("/v1"):
        case "/tokenize":
            tokens = list(range(len(str(value.get("prompt", value.get("messages"))).split())))
            return {"tokens": tokens, "count": len(tokens), "max_model_len": 4096}
        case "/detokenize":
            return {"prompt": " ".join("word" for _ in value["tokens"])}
    return None
