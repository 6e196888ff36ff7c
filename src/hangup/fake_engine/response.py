"""Builds each API's answers, streamed and whole, from the same deterministic text.

A `FakeResponse` is made from the request. It provides the events of a stream (`opening`, `token`, `closing`) and the whole
answer (`whole`), so that a test can compare an answer that a gateway assembled from a stream with the whole one.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

import orjson

Json = dict[str, Any]

WORDS = (
    "when the client hangs up the engine must stop at once and give its slot to the next call in line "
    "because every token that nobody reads was paid for by somebody who does"
).split()


class FakeResponse:
    """One answer. `length` is its number of tokens per choice, `cap` the client's maximum."""

    content_type = b"text/event-stream; charset=utf-8"
    stream_default = False

    def __init__(self, request: Json, id: str, model: str) -> None:
        self.request = request
        self.id = id
        self.model = str(request.get("model") or model)
        self.created = int(time.time())
        self.stream = bool(request.get("stream", self.stream_default))
        self.prompt = self.prompt_text()
        self.prompt_tokens = max(1, len(self.prompt.split()))
        self.seed = zlib.crc32(self.prompt.encode("utf-8", "replace"))
        self.cap = self.cap_tokens()
        self.choices = self.count_choices()
        self.length = 0
        self.extra_usage = 0  # tokens to add to the usage, as a lie
        self.finish_reason = "length"

    # What the request says

    def prompt_text(self) -> str:
        messages = self.request.get("messages") or []
        return " ".join(str(m.get("content")) for m in messages if isinstance(m, dict))

    def cap_tokens(self) -> int:
        given = self.request.get("max_completion_tokens") or self.request.get("max_tokens")
        return given if isinstance(given, int) and given > 0 else 1 << 30

    def count_choices(self) -> int:
        n = self.request.get("n") or 1
        return n if isinstance(n, int) and n > 0 else 1

    def set_length(self, answer_tokens: int, ignore_cap: bool) -> None:
        """Set the length of the answer and its finish reason."""
        natural = 1 << 30 if self.request.get("ignore_eos") else answer_tokens
        self.length = natural if ignore_cap else min(self.cap, natural)
        self.finish_reason = "stop" if self.length == natural else "length"

    # The text

    def word(self, choice: int, index: int) -> str:
        word = WORDS[(self.seed + choice * 7 + index) % len(WORDS)]
        return word if index == 0 else " " + word

    def text(self, choice: int, count: int) -> str:
        return "".join(self.word(choice, index) for index in range(count))

    # The answer

    def opening(self) -> list[bytes]:
        return []

    def token(self, choice: int, index: int) -> bytes:
        raise NotImplementedError

    def closing(self, count: int) -> list[bytes]:
        raise NotImplementedError

    def whole(self, count: int) -> Json:
        raise NotImplementedError


def sse(value: Any, name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def logprob(word: str, top: int) -> Json:
    value = -0.25 - (zlib.crc32(word.encode()) % 100) / 100
    entry = {"token": word, "logprob": value, "bytes": list(word.encode())}
    return {**entry, "top_logprobs": [{**entry, "token": word} for _ in range(top)]}
