"""The APIs that a probe speaks: how each asks for an answer, and what one event of its stream means. No I/O."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a call asks for."""

    model: str
    prompt: str
    tokens: int
    stream: bool
    extra: bool = True  # also send the fields that make engines write on to the maximum; strict APIs refuse them
    newer: bool = False  # limit the tokens by the field that newer models of OpenAI want


class Dialect:
    """An API. The defaults suit OpenAI's."""

    name = ""
    path = ""
    needs_model = True
    stream_path = ""  # where a stream is asked for, if elsewhere

    def target(self, stream: bool) -> str:
        return self.stream_path if stream and self.stream_path else self.path

    def body(self, wish: Wish) -> Json:
        raise NotImplementedError

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def text(self, event: Json) -> str:
        """Return the text of one event, or of a whole answer."""
        raise NotImplementedError

    def tokens(self, answer: Json) -> int | None:
        """Return the output tokens that an answer or its last event reports."""
        usage = answer.get("usage")
        return _count(usage.get("completion_tokens")) if isinstance(usage, dict) else None

    def is_answer(self, answer: Json) -> bool:
        """Return whether this can be a whole answer of this API."""
        return isinstance(answer.get("choices"), list)


class ChatDialect(Dialect):
    name = "openai"
    path = "/v1/chat/completions"

    def body(self, wish: Wish) -> Json:
        messages = [{"role": "user", "content": wish.prompt}]
        limit = "max_completion_tokens" if wish.newer else "max_tokens"
        fields: Json = {"messages": messages, limit: wish.tokens, "temperature": 1, "stream": wish.stream}
        return _with_model(wish, fields) | _extra_fields(wish)

    def text(self, event: Json) -> str:
        return "".join(_texts(choice) for choice in _rows(event.get("choices")))


class CompletionsDialect(ChatDialect):
    name = "openai-completions"
    path = "/v1/completions"

    def body(self, wish: Wish) -> Json:
        fields: Json = {"prompt": wish.prompt, "max_tokens": wish.tokens, "temperature": 1, "stream": wish.stream}
        return _with_model(wish, fields) | _extra_fields(wish)


class MessagesDialect(Dialect):
    name = "anthropic"
    path = "/v1/messages"

    def body(self, wish: Wish) -> Json:
        messages = [{"role": "user", "content": wish.prompt}]
        return _with_model(wish, {"messages": messages, "max_tokens": wish.tokens, "stream": wish.stream})

    def headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {})

    def text(self, event: Json) -> str:
        delta = event.get("delta")
        if isinstance(delta, dict):
            return _text(delta.get("text")) or _text(delta.get("thinking"))
        return "".join(_text(block.get("text")) for block in _rows(event.get("content")))

    def tokens(self, answer: Json) -> int | None:
        usage = answer.get("usage")
        return _count(usage.get("output_tokens")) if isinstance(usage, dict) else None

    def is_answer(self, answer: Json) -> bool:
        return answer.get("type") == "message"


class ResponsesDialect(Dialect):
    """OpenAI's Responses API. Answers are stored, so that their usage can be asked for afterwards."""

    name = "openai-responses"
    path = "/v1/responses"

    def body(self, wish: Wish) -> Json:
        fields: Json = {"input": wish.prompt, "max_output_tokens": wish.tokens, "stream": wish.stream, "store": True}
        return _with_model(wish, fields) | ({"ignore_eos": True} if wish.extra else {})

    def text(self, event: Json) -> str:
        if event.get("type") in ("response.output_text.delta", "response.reasoning_text.delta"):
            return _text(event.get("delta"))
        items = _rows(event.get("output"))
        return "".join(_text(part.get("text")) for item in items for part in _rows(item.get("content")))

    def tokens(self, answer: Json) -> int | None:
        whole = answer.get("response") if isinstance(answer.get("response"), dict) else answer
        usage = whole.get("usage") if isinstance(whole, dict) else None
        return _count(usage.get("output_tokens")) if isinstance(usage, dict) else None

    def is_answer(self, answer: Json) -> bool:
        return answer.get("object") == "response"


class OllamaDialect(Dialect):
    name = "ollama"
    path = "/api/generate"

    def body(self, wish: Wish) -> Json:
        return _with_model(wish, {"prompt": wish.prompt, "stream": wish.stream, "options": {"num_predict": wish.tokens}})

    def text(self, event: Json) -> str:
        return _text(event.get("response")) or _text(event.get("thinking"))

    def tokens(self, answer: Json) -> int | None:
        return _count(answer.get("eval_count"))

    def is_answer(self, answer: Json) -> bool:
        return "response" in answer and "done" in answer


class LlamaCppDialect(Dialect):
    name = "llamacpp"
    path = "/completion"
    needs_model = False

    def body(self, wish: Wish) -> Json:
        fields: Json = {"prompt": wish.prompt, "n_predict": wish.tokens, "stream": wish.stream}
        return fields | ({"ignore_eos": True} if wish.extra else {})

    def text(self, event: Json) -> str:
        return _text(event.get("content"))

    def tokens(self, answer: Json) -> int | None:
        return _count(answer.get("tokens_predicted"))

    def is_answer(self, answer: Json) -> bool:
        return "content" in answer and "stop" in answer


class TgiDialect(Dialect):
    name = "tgi"
    path = "/generate"
    stream_path = "/generate_stream"
    needs_model = False

    def body(self, wish: Wish) -> Json:
        return {"inputs": wish.prompt, "parameters": {"max_new_tokens": wish.tokens, "details": True}}

    def text(self, event: Json) -> str:
        token = event.get("token")
        return _text(token.get("text")) if isinstance(token, dict) else _text(event.get("generated_text"))

    def tokens(self, answer: Json) -> int | None:
        details = answer.get("details")
        return _count(details.get("generated_tokens")) if isinstance(details, dict) else None

    def is_answer(self, answer: Json) -> bool:
        return "generated_text" in answer


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        ChatDialect(),
        MessagesDialect(),
        OllamaDialect(),
        LlamaCppDialect(),
        TgiDialect(),
        CompletionsDialect(),
        ResponsesDialect(),
    )
}


def event_of(line: bytes) -> Json | None:
    """Return the event in one line of a stream (SSE or newline-delimited JSON); None if there is none."""
    line = line.removeprefix(b"data:").strip()
    if not line.startswith(b"{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def error_of(body: bytes) -> str:
    """Return what an error answer says, in one short line."""
    try:
        value = json.loads(body)
    except ValueError:
        title = re.search(rb"<title>([^<]*)", body, re.I)  # a page for people
        value = title[1].decode("utf-8", "replace") if title else None
    for name in ("error", "detail", "message", "object"):
        value = value[name] if isinstance(value, dict) and name in value else value
    text = value if isinstance(value, str) else body.decode("utf-8", "replace") if value is None else json.dumps(value)
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:159] + "…"


def _extra_fields(wish: Wish) -> Json:
    """Return fields that engines know and strict APIs refuse: write on, and report the tokens so far with each event."""
    if not wish.extra:
        return {}
    counting = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}} if wish.stream else {}
    return {"ignore_eos": True, **counting}


def _with_model(wish: Wish, fields: Json) -> Json:
    return {"model": wish.model, **fields} if wish.model else fields


def _texts(choice: Json) -> str:
    for name in ("delta", "message"):
        part = choice.get(name)
        if isinstance(part, dict):
            return _text(part.get("content")) or _text(part.get("reasoning_content")) or _text(part.get("reasoning"))
    return _text(choice.get("text"))


def _rows(value: object) -> list[Json]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**53 else None
