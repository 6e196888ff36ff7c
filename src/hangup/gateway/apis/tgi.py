"""Text Generation Inference: POST /generate and POST /generate_stream."""

from __future__ import annotations

from typing import Final

import orjson

from hangup.config import CallLimits
from hangup.gateway.apis.base import Api, Ask, Assembler, Caps, Cut, Json, Usage, count_answers

_STREAM_PATH: Final = "/generate_stream"
# Features of /generate that /generate_stream lacks.
_NOT_STREAMED = ("best_of", "decoder_input_details", "top_n_tokens")


class TgiGenerate(Api):
    name = "tgi.generate"
    paths = {"/generate_stream": ("POST",)}
    generates = True
    caps = Caps(("max_new_tokens",), table="parameters")
    fields = {"inputs": (str,), "parameters": (dict,), "stream": (bool,)}
    usage_mark = b'"generated_tokens"'
    text_marks = (b'"token":{', b'"token": {')
    open_marks = (b'"generated_text":null', b'"generated_text": null')

    def error(self, status: int, code: str, message: str) -> Json:
        kind = "validation" if status < 500 else "overloaded" if status == 503 else "generation"
        return {"error": message, "error_type": kind}

    def wants_stream(self, path: str, value: Json) -> bool:
        return path == _STREAM_PATH

    def count_choices(self, value: Json, limits: CallLimits) -> int:
        return count_answers(value.get("parameters") or {}, ("best_of",), 1, limits)

    def set_assembly(self, ask: Ask, value: Json) -> None:
        parameters = value.get("parameters") or {}
        if not any(parameters.get(name) for name in _NOT_STREAMED):
            ask.assembler, ask.path = TgiAssembler(bool(parameters.get("details"))), _STREAM_PATH

    def weigh(self, event: Json) -> int:
        return 1 if event.get("token") else 0

    def usage(self, event: Json) -> Usage | None:
        details = event.get("details")
        return Usage(details.get("input_length"), details.get("generated_tokens")) if type(details) is dict else None

    def is_last(self, event: Json) -> bool:
        return event.get("generated_text") is not None

    def closing(self, cut: Cut) -> bytes:
        details = {"finish_reason": "length", "generated_tokens": cut.tokens, "seed": None, "input_length": 0}
        token = {"id": 0, "text": "", "logprob": 0.0, "special": True}  # the last event must have one
        return self.format.encode(orjson.dumps({**cut.beyond_cap, "token": token, "generated_text": "", "details": details}))


class TgiAssembler(Assembler):
    """Joins the tokens; the last event has the whole text and the details."""

    def __init__(self, details: bool) -> None:
        self._wants_details = details
        self._tokens: list[Json] = []
        self._last: Json = {}

    def add(self, event: Json) -> None:
        if type(event.get("token")) is dict:
            self._tokens.append(event["token"])
        self._last = event
        self.finished = event.get("generated_text") is not None

    def result(self, capped: bool) -> Json:
        text = self._last.get("generated_text")
        if text is None:
            text = "".join(t.get("text", "") for t in self._tokens if not t.get("special"))
        answer: Json = {"generated_text": text}
        if self._wants_details:
            last = self._last.get("details") or {}
            answer["details"] = {
                "finish_reason": "length" if capped else last.get("finish_reason"),
                "generated_tokens": len(self._tokens) if capped else last.get("generated_tokens"),
                "seed": last.get("seed"),
                "prefill": [],
                "tokens": self._tokens,
            }
        return answer
