"""OpenAI responses: POST /v1/responses. The last event has the whole answer, which makes assembly easy."""

from __future__ import annotations

from typing import Final

import orjson

from hangup.gateway.apis.base import Api, Ask, Assembler, Caps, Cut, Failure, Json, Usage, marks

_NO_WORK = (None, "response.created", "response.queued", "response.in_progress", "keepalive", "ping", "error")
_LAST = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")

_STATUS: Final = {"rate_limit_exceeded": 429, "invalid_prompt": 400, "invalid_request_error": 400}  # of an error, by its code


class OpenAIResponses(Api):
    name = "openai.responses"
    paths = {"/v1/responses": ("POST",)}
    generates = True
    kept_by_engine = True
    caps = Caps(("max_output_tokens",), least=16)  # OpenAI refuses less
    fields = {"model": (str,), "input": (str, list), "stream": (bool,), "background": (bool,), "tools": (list,)}
    text_marks = marks("delta")
    usage_mark = b'_tokens"'
    needs_history = True

    def set_assembly(self, ask: Ask, value: Json) -> None:
        if not value.get("background"):
            ask.assembler, ask.to_stream = ResponsesAssembler(), {"stream": True}

    def weigh(self, event: Json) -> int:
        return 1 if event.get("delta") and str(event.get("type", "")).endswith(".delta") else 0

    def shows_progress(self, event: Json) -> bool:
        """Tools that the engine runs itself, and the start and end of parts, may be the only signs of progress for a while."""
        return event.get("type") not in _NO_WORK

    def usage(self, event: Json) -> Usage | None:
        usage = (event.get("response") or event).get("usage")
        return Usage(usage.get("input_tokens"), usage.get("output_tokens")) if type(usage) is dict else None

    def is_last(self, event: Json) -> bool:
        return event.get("type") in _LAST

    def error_event(self, status: int, code: str, message: str) -> bytes:
        event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0}
        return self.format.encode(orjson.dumps(event), b"error")

    def abandoned_reason(self, event: Json) -> str | None:
        whole = event.get("object") == "response" and event.get("status") == "cancelled"
        return "cancelled" if whole or event.get("type") == "response.cancelled" else None

    def failure(self, event: Json) -> Failure | None:
        """Translate an error. `error` ends a stream without `response.failed`. The latter is an answer: a client that does not
        stream gets it with status 200."""
        if event.get("type") == "response.failed":
            response = event.get("response")
            return Failure(200, response if type(response) is dict else event)
        if event.get("type") != "error":
            return super().failure(event)
        error = event.get("error")
        source = error if type(error) is dict else event
        code, message = source.get("code"), str(source.get("message") or "")
        status = _STATUS.get(str(code), 502)
        return Failure(status, self.error(status, str(code or "server_error"), message))

    def closing(self, cut: Cut) -> bytes:
        assembler = ResponsesAssembler()
        for event in cut.history:
            assembler.add(event)
        event = {
            "type": "response.incomplete",
            "response": assembler.result(capped=True),
            "sequence_number": cut.beyond_cap.get("sequence_number", 0),
        }
        return self.format.encode(orjson.dumps(event), b"response.incomplete")


class ResponsesAssembler(Assembler):
    """Takes the last event's response; rebuilds the output of a truncated stream from its deltas."""

    def __init__(self) -> None:
        self._response: Json = {}
        self._items: dict[int, Json] = {}

    def add(self, event: Json) -> None:
        kind = event.get("type")
        if type(event.get("response")) is dict:
            self._response = event["response"]
            self.finished = kind in _LAST
        index = event.get("output_index")
        if type(index) is int and type(kind) is str:
            self._add_piece(kind, self._items.setdefault(index, {}), index, event)

    def _add_piece(self, kind: str, item: Json, index: int, event: Json) -> None:
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._items[index] = event["item"]
        elif kind in _PARTS:
            where, numbered = _PARTS[kind]
            item.setdefault(where, [])[event.get(numbered, 0) :] = [event["part"]]
        elif kind in _PART_DELTAS:
            where, numbered, field, empty = _PART_DELTAS[kind]
            parts = item.setdefault(where, [])
            if len(parts) <= event.get(numbered, 0):
                parts.append({**empty})
            part = parts[event.get(numbered, 0)]
            part[field] = part.get(field, "") + event.get("delta", "")
        elif kind in _ITEM_DELTAS:
            field = _ITEM_DELTAS[kind]
            item[field] = item.get(field, "") + event.get("delta", "")

    def result(self, capped: bool) -> Json:
        if not capped:
            return self._response
        items = [self._items[index] for index in sorted(self._items) if self._items[index]]
        items = [item if item.get("status") == "completed" else {**item, "status": "incomplete"} for item in items]
        cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": items}
        return {**self._response, **cut}


# How to rebuild the answer of a truncated stream: for each event, the list, the index in it, and the field that grows.
_PARTS: Final = {
    "response.content_part.added": ("content", "content_index"),
    "response.content_part.done": ("content", "content_index"),
    "response.reasoning_summary_part.added": ("summary", "summary_index"),
    "response.reasoning_summary_part.done": ("summary", "summary_index"),
}
_PART_DELTAS: dict[str, tuple[str, str, str, Json]] = {
    "response.output_text.delta": ("content", "content_index", "text", {"type": "output_text", "text": "", "annotations": []}),
    "response.refusal.delta": ("content", "content_index", "refusal", {"type": "refusal", "refusal": ""}),
    "response.reasoning_text.delta": ("content", "content_index", "text", {"type": "reasoning_text", "text": ""}),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "text", {"type": "summary_text", "text": ""}),
}
_ITEM_DELTAS: Final = {
    "response.function_call_arguments.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.code_interpreter_call_code.delta": "code",
}
