"""OpenAI's chat completions and completions, as many other engines and SDKs stream them too."""

from __future__ import annotations

from typing import Any

from hangup.library.formats.base import ChunkFormat, field, to_json, tokens_of

_REASONING = ("reasoning_content", "reasoning", "refusal")


class CountedChunk(dict[str, Any]):
    """A chunk whose source knows how many tokens it has (None if it does not)."""

    __slots__ = ("tokens",)

    def __init__(self, chunk: dict[str, Any], tokens: int | None) -> None:
        super().__init__(chunk)
        self.tokens = tokens


class OpenAIChunks(ChunkFormat):
    """Chunks with `choices`. Tokens are those that the engine reports, else those of the text, for all choices together."""

    done = b"data: [DONE]\n\n"

    def __init__(self) -> None:
        self._last: Any = None
        self._begun: set[int] = set()
        self._finished: set[int] = set()

    def tokens(self, chunk: Any, so_far: int) -> tuple[int, bool]:
        self._last = chunk
        if not isinstance(chunk, dict):
            fast = self._tokens_of_model(chunk)
            if fast:
                return fast, True
        tokens, has_text = 0, False
        for choice in field(chunk, "choices") or ():
            index = field(choice, "index") or 0
            (self._finished if field(choice, "finish_reason") else self._begun).add(index)
            count = _tokens_of_choice(choice)
            tokens, has_text = tokens + count, has_text or count > 0
        if type(chunk) is CountedChunk and chunk.tokens is not None:
            return chunk.tokens, has_text
        usage = field(chunk, "usage")
        if usage is not None:
            reported = field(usage, "completion_tokens")
            if isinstance(reported, int) and reported > 0:
                tokens = reported - so_far
        return tokens, has_text

    def _tokens_of_model(self, chunk: Any) -> int:
        """Count the chunk that nearly all are, OpenAI's own model with one piece of text, without asking for what it lacks; 0
        for any other."""
        try:
            (choice,) = chunk.choices
            text = choice.delta.content
            if not text or chunk.usage is not None or choice.logprobs is not None or choice.finish_reason or choice.model_extra:
                return 0
            self._begun.add(choice.index)
            return tokens_of(text)
        except (AttributeError, TypeError, ValueError):
            return 0

    def cut(self, tokens: int) -> list[dict[str, Any]]:
        """Return a last chunk that says `finish_reason: "length"` for every choice that has not ended."""
        text = field(self._last, "object") == "text_completion"
        content: dict[str, Any] = {"text": ""} if text else {"delta": {}}
        choices = [
            {"index": index, **content, "logprobs": None, "finish_reason": "length"}
            for index in sorted(self._begun - self._finished)
        ]
        head = {name: field(self._last, name) for name in ("id", "object", "created", "model")}
        return [{**head, "choices": choices}]


class OpenAIChatEvents(OpenAIChunks):
    """The events of the SDK's `chat.completions.stream(...)`: only its chunks belong to the API; the rest repeats them."""

    def message(self, chunk: Any) -> bytes:
        return to_json(chunk.chunk) if chunk.type == "chunk" else b""

    def tokens(self, chunk: Any, so_far: int) -> tuple[int, bool]:
        return super().tokens(chunk.chunk, so_far) if chunk.type == "chunk" else (0, False)


def _tokens_of_choice(choice: Any) -> int:
    """Return how many tokens a choice's part has, by its logarithms or token ids if it has them, else by its text."""
    logprobs = field(choice, "logprobs")
    if logprobs is not None:
        listed = field(logprobs, "content") or field(logprobs, "tokens")
        if listed:
            return len(listed)
    delta = field(choice, "delta")
    text = field(choice, "text") if delta is None else field(delta, "content")
    if not text and delta is not None:
        text = _other_text(delta)
    if not text or not isinstance(text, str):
        return 0
    ids = _extra(choice).get("token_ids")
    return len(ids) if ids else tokens_of(text)


def _other_text(delta: Any) -> str:
    calls = field(delta, "tool_calls")
    if calls:
        functions = [field(call, "function") for call in calls]
        return "".join((field(f, "name") or "") + (field(f, "arguments") or "") for f in functions if f is not None)
    extra = _extra(delta)
    return next((extra[name] for name in _REASONING if extra.get(name)), None) or field(delta, "refusal") or ""


def _extra(value: Any) -> dict[str, Any]:
    """Return the fields that an SDK's model does not know: asking it for one that it lacks would cost more than a chunk."""
    return value if isinstance(value, dict) else getattr(value, "model_extra", None) or {}
