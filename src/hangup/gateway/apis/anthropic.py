"""Anthropic messages: POST /v1/messages."""

from __future__ import annotations

from typing import Final

import orjson

from hangup.gateway.apis.base import Api, Ask, Assembler, Caps, Cut, Failure, Json, Usage, marks, merge

_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

_ERROR_STATUS: Final = {kind: status for status, kind in _ERROR_TYPES.items()} | {"overloaded_error": 529}
_WORK = ("content_block_start", "content_block_stop", "message_delta", "message_stop")


class AnthropicErrors(Api):
    """The error format of all of Anthropic's paths."""

    def error(self, status: int, code: str, message: str) -> Json:
        kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def error_event(self, status: int, code: str, message: str) -> bytes:
        return self.format.encode(orjson.dumps(self.error(status, code, message)), b"error")


class AnthropicMessages(AnthropicErrors):
    name = "anthropic.messages"
    paths = {"/v1/messages": ("POST",)}
    text_mark = b'"delta":{"type":"text_delta","text":"'
    generates = True
    caps = Caps(("max_tokens",))
    fields = {"model": (str,), "messages": (list,), "stream": (bool,), "tools": (list,)}
    text_marks = marks("text", "thinking", "partial_json")
    usage_mark = b'_tokens"'

    def least_maximum(self, value: Json) -> int:
        # The thinking budget must be below the maximum.
        thinking = value.get("thinking")
        budget = thinking.get("budget_tokens") if type(thinking) is dict else None
        return budget + 1 if type(budget) is int else 1

    def set_assembly(self, ask: Ask, value: Json) -> None:
        ask.assembler, ask.to_stream = MessageAssembler(), {"stream": True}

    def weigh(self, event: Json) -> int:
        if event.get("type") != "content_block_delta":
            return 0
        delta = event.get("delta") or {}
        return 1 if any(value for key, value in delta.items() if key not in ("type", "signature")) else 0

    def is_all_text(self, event: Json) -> bool:
        return set(event["delta"]) <= {"type", "text"}

    def shows_progress(self, event: Json) -> bool:
        """A tool that the engine runs itself shows only at the start and the end of its block."""
        if event.get("type") == "content_block_delta":
            return bool((event.get("delta") or {}).get("signature"))
        return event.get("type") in _WORK

    def usage(self, event: Json) -> Usage | None:
        # The start event has the input count, but only an initial output count; the end has the final output count.
        if event.get("type") == "message_start":
            usage = (event.get("message") or {}).get("usage") or {}
            return Usage(usage.get("input_tokens"), None)
        usage = event.get("usage")
        return Usage(usage.get("input_tokens"), usage.get("output_tokens")) if usage else None

    def is_last(self, event: Json) -> bool:
        return event.get("type") == "message_stop"

    def failure(self, event: Json) -> Failure | None:
        if event.get("type") != "error":
            return None
        error = event.get("error")
        kind = error.get("type") if type(error) is dict else None
        return Failure(_ERROR_STATUS.get(str(kind), 502), event)

    def closing(self, cut: Cut) -> bytes:
        # The event beyond the cap belongs to a block that has begun.
        events: list[Json] = [{"type": "content_block_stop", "index": cut.beyond_cap.get("index", 0)}]
        stop = {"stop_reason": "max_tokens", "stop_sequence": None}
        events.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": cut.tokens}})
        events.append({"type": "message_stop"})
        return b"".join(self.format.encode(orjson.dumps(e), e["type"].encode()) for e in events)


class AnthropicCountTokens(AnthropicErrors):
    name = "anthropic.count_tokens"
    paths = {"/v1/messages/count_tokens": ("POST",)}
    question = True


class MessageAssembler(Assembler):
    """Fills the content blocks of the started message."""

    def __init__(self) -> None:
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._arguments: dict[int, str] = {}

    def add(self, event: Json) -> None:
        kind = event.get("type")
        index = event.get("index", 0)
        if kind == "message_start":
            self._message = event["message"]
        elif kind == "content_block_start":
            self._blocks[index] = event["content_block"]
        elif kind == "content_block_delta":
            self._add_delta(index, event["delta"])
        elif kind == "message_delta":
            self._message.update(event["delta"])
            self._message.setdefault("usage", {}).update(event.get("usage") or {})
            self._message.update({key: value for key, value in event.items() if key not in ("type", "delta", "usage")})
        elif kind == "message_stop":
            self.finished = True

    def _add_delta(self, index: int, delta: Json) -> None:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        match delta.get("type"):
            case "text_delta":
                block["text"] = block.get("text", "") + delta["text"]
            case "input_json_delta":
                self._arguments[index] = self._arguments.get(index, "") + delta["partial_json"]
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
            case "signature_delta":
                block["signature"] = block.get("signature", "") + delta["signature"]
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
            case _:
                merge(block, {key: value for key, value in delta.items() if key != "type"})

    def result(self, capped: bool) -> Json:
        for index, text in self._arguments.items():
            try:
                self._blocks[index]["input"] = orjson.loads(text) if text else {}
            except orjson.JSONDecodeError:
                self._blocks[index]["input"] = {}  # truncated by the cap
        if capped and not self._message.get("stop_reason"):
            self._message.update(stop_reason="max_tokens", stop_sequence=None)
        self._message["content"] = [self._blocks[index] for index in sorted(self._blocks)]
        return self._message
