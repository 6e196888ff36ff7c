"""OpenAI's POST /v1/responses. The engine stores no responses; the gateway runs background responses as jobs."""

from __future__ import annotations

import time
from typing import Any

import orjson

from hangup.core import reasons
from hangup.engine.model import Model
from hangup.engine.request import Choice, GenerationEnded
from hangup.engine.serving.answers import AnswerShape, Json
from hangup.engine.serving.generation import GenerationCall
from hangup.engine.serving.requests import ParsedRequest, bad, read_prompts, refuse_unsupported, text_of
from hangup.engine.tokenizer import Tokenizer
from hangup.errors import Refusal
from hangup.gateway.apis.openai_responses import OpenAIResponses
from hangup.gateway.http.sse import SSE

# Fields that would change the answer but that this engine does not support.
_UNSUPPORTED = ("tools", "previous_response_id", "conversation", "prompt", "include", "top_logprobs")
_TEXT = ("input_text", "output_text", "text")
# Fields with the same name and meaning as in chat, and two fields of this engine.
_SAME = ("temperature", "top_p", "stream", "seed", "ignore_eos")
_STATUS = {"stop": "completed", "length": "incomplete", "cancelled": "cancelled"}
_API = OpenAIResponses()


def read_response(body: dict[str, Any], model: Model, choices_max: int, name: str) -> ParsedRequest:
    refuse_unsupported(body, _UNSUPPORTED)
    if body.get("background"):
        raise Refusal(reasons.BAD_FIELD, "background: this engine does not store responses; use `hangup serve` in front of it.")
    text = body.get("text")
    if isinstance(text, dict):
        refuse_unsupported({"text.format": text.get("format")}, ("text.format",))
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise bad("instructions", "a text")
    turns = _read_input(body.get("input"))
    prompt = model.tokenizer.chat([("system", instructions), *turns] if instructions else turns)
    wanted = body.get("max_output_tokens")
    plain = {key: body[key] for key in _SAME if key in body}
    encoded = [model.tokenizer.encode(prompt)]
    parsed = read_prompts(plain, model, choices_max, name, encoded, wanted, model.context, None, "max_output_tokens")
    metadata = body.get("metadata")
    request = parsed.requests[0]
    parsed.echoed.update(
        instructions=instructions,
        max_output_tokens=wanted,
        metadata=metadata if isinstance(metadata, dict) else {},
        temperature=request.temperature,
        top_p=request.top_p,
    )
    return parsed


def _read_input(given: Any) -> list[tuple[str, str]]:
    if isinstance(given, str) and given:
        return [("user", given)]
    if not isinstance(given, list) or not given or not all(isinstance(item, dict) for item in given):
        raise bad("input", "a text, or a list of messages")
    for item in given:
        if item.get("type", "message") != "message":
            raise Refusal(reasons.BAD_FIELD, f"input: items of type {str(item['type'])[:80]} are not supported by this engine.")
    return [(str(item.get("role", "user")), text_of(item.get("content"), _TEXT)) for item in given]


class ResponseAnswer(AnswerShape):
    def __init__(self, id: str, model: str, tokenizer: Tokenizer, parsed: ParsedRequest) -> None:
        self._id = id
        self._head: Json = {"id": f"resp_{id}", "object": "response", "created_at": int(time.time()), "model": model}
        self._extra_fields: Json = {
            "parallel_tool_calls": True,
            "store": False,
            "tool_choice": "auto",
            "tools": [],
            **parsed.echoed,
        }
        self._number = 0
        self._texts: list[str] = []  # of a stream: its last events repeat the whole text

    def opening(self) -> bytes:
        response = self._response("in_progress", [], None)
        return b"".join(
            (
                self._event("response.created", response=response),
                self._event("response.in_progress", response=response),
                self._event("response.output_item.added", output_index=0, item=self._item("in_progress", [])),
                self._event("response.content_part.added", **self._location(), part=_part("")),
            )
        )

    def event(self, index: int, text: str, choices: tuple[Choice, ...]) -> bytes:
        self._texts.append(text)
        return self._event("response.output_text.delta", **self._location(), delta=text, logprobs=[])

    def closing(self, index: int, end: GenerationEnded) -> bytes:
        text, status = "".join(self._texts), _STATUS[end.reason]
        item = self._item(status, [_part(text)])
        return b"".join(
            (
                self._event("response.output_text.done", **self._location(), text=text, logprobs=[]),
                self._event("response.content_part.done", **self._location(), part=_part(text)),
                self._event("response.output_item.done", output_index=0, item=item),
                self._event(f"response.{status}", response=self._response(status, [item], end)),
            )
        )

    def whole(self, texts: list[str], choices: list[list[Choice]], ends: list[GenerationEnded]) -> bytes:
        status = _STATUS[ends[0].reason]
        return orjson.dumps(self._response(status, [self._item(status, [_part(texts[0])])], ends[0]))

    @classmethod
    def error_event(cls, status: int, code: str, message: str) -> bytes:
        return _API.error_event(status, code, message)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return SSE.encode(orjson.dumps(event), kind.encode())

    def _location(self) -> Json:
        return {"item_id": f"msg_{self._id}", "output_index": 0, "content_index": 0}

    def _item(self, status: str, content: list[Json]) -> Json:
        item_status = "incomplete" if status == "cancelled" else status
        return {"id": f"msg_{self._id}", "type": "message", "status": item_status, "role": "assistant", "content": content}

    def _response(self, status: str, output: list[Json], end: GenerationEnded | None) -> Json:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        fields = {"status": status, "error": None, "incomplete_details": cut, "output": output, "usage": _usage(end)}
        return {**self._head, **fields, **self._extra_fields}


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(end: GenerationEnded | None) -> Json | None:
    if end is None:
        return None
    return {
        "input_tokens": end.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": end.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": end.prompt_tokens + end.tokens,
    }


class ResponsesCall(GenerationCall):
    shape: type[AnswerShape] = ResponseAnswer
    read = staticmethod(read_response)
