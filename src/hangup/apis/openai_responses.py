"""OpenAI responses: POST /v1/responses. Its last event carries the whole answer, which makes assembling easy."""

from __future__ import annotations

import orjson

from hangup.apis.base import Api, Ask, Assembler, Caps, Json, Usage

_LAST = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class OpenAIResponses(Api):
    name = "openai.responses"
    generates = True
    kept_by_engine = True
    caps = Caps(("max_output_tokens",), least=16)  # OpenAI refuses less
    fields = {"model": (str,), "input": (str, list), "stream": (bool,), "background": (bool,), "tools": (list,)}
    needles = (b'.delta"',)
    needs_history = True

    def set_assembly(self, ask: Ask, value: Json) -> None:
        if not value.get("background"):
            ask.assembler, ask.to_stream = ResponsesAssembler(), {"stream": True}

    def weigh(self, event: Json) -> int:
        return 1 if str(event.get("type", "")).endswith(".delta") else 0

    def usage(self, event: Json) -> Usage | None:
        usage = (event.get("response") or event).get("usage")
        return Usage(usage.get("input_tokens"), usage.get("output_tokens")) if type(usage) is dict else None

    def is_last(self, event: Json) -> bool:
        return event.get("type") in _LAST

    def error_event(self, status: int, code: str, message: str) -> bytes:
        event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0}
        return self.format.encode(orjson.dumps(event), b"error")

    def closing(self, ask: Ask, last: Json, history: list[Json], tokens: int) -> bytes:
        assembler = ResponsesAssembler()
        for event in history:
            assembler.add(event)
        event = {
            "type": "response.incomplete",
            "response": assembler.result(capped=True),
            "sequence_number": last.get("sequence_number", 0) + 1,
        }
        return self.format.encode(orjson.dumps(event), b"response.incomplete")


class ResponsesAssembler(Assembler):
    """Takes the last event's response; of a stream cut short it rebuilds the output from the deltas."""

    def __init__(self) -> None:
        self._response: Json = {}
        self._items: dict[int, Json] = {}

    def add(self, event: Json) -> None:
        kind = event.get("type")
        if type(event.get("response")) is dict:
            self._response = event["response"]
            self.finished = kind in _LAST
        index = event.get("output_index")
        if type(index) is not int:
            return
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._items[index] = event["item"]
        elif kind in ("response.content_part.added", "response.content_part.done"):
            self._items.setdefault(index, {}).setdefault("content", [])[event.get("content_index", 0) :] = [event["part"]]
        elif kind == "response.output_text.delta":
            content = self._items.setdefault(index, {}).setdefault("content", [])
            if not content:
                content.append({"type": "output_text", "text": "", "annotations": []})
            content[-1]["text"] = content[-1].get("text", "") + event.get("delta", "")
        elif kind == "response.function_call_arguments.delta":
            item = self._items.setdefault(index, {})
            item["arguments"] = item.get("arguments", "") + event.get("delta", "")

    def result(self, capped: bool) -> Json:
        if not capped:
            return self._response
        items = [{**self._items[index], "status": "incomplete"} for index in sorted(self._items)]
        cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": items}
        return {**self._response, **cut}
