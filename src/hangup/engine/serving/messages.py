"""Anthropic's API: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any

import orjson

from hangup.core import reasons
from hangup.engine.model import Model
from hangup.engine.request import Choice, GenerationEnded
from hangup.engine.serving.answers import AnswerShape, Json
from hangup.engine.serving.call import EngineCall, respond
from hangup.engine.serving.generation import GenerationCall
from hangup.engine.serving.requests import ParsedRequest, bad, read_prompts, refuse_unsupported, stops_of, text_of
from hangup.engine.tokenizer import Tokenizer
from hangup.errors import Refusal
from hangup.gateway.apis.anthropic import AnthropicErrors
from hangup.gateway.http.sse import SSE

# Fields that would change the answer but that this engine does not support.
_UNSUPPORTED = ("tools", "mcp_servers", "container", "top_k")
# Fields with the same name and meaning as in OpenAI's API, and two fields of this engine.
_SAME = ("temperature", "top_p", "stream", "seed", "ignore_eos")
_ERRORS = AnthropicErrors()


def read_messages(body: dict[str, Any], model: Model, choices_max: int, name: str) -> ParsedRequest:
    prompt = _prompt(body, model)
    if body.get("max_tokens") is None:
        raise Refusal(reasons.BAD_FIELD, "max_tokens: Field required")
    if isinstance(body.get("stop_sequences"), str):
        raise bad("stop_sequences", "a list of texts")
    plain = {key: body[key] for key in _SAME if key in body}
    plain["stop"] = list(stops_of(body.get("stop_sequences"), "stop_sequences"))
    return read_prompts(plain, model, choices_max, name, [prompt], body["max_tokens"], model.context, None)


def _prompt(body: dict[str, Any], model: Model) -> list[int]:
    refuse_unsupported(body, _UNSUPPORTED)
    thinking = body.get("thinking")
    if thinking and not (isinstance(thinking, dict) and thinking.get("type") == "disabled"):
        raise Refusal(reasons.BAD_FIELD, "thinking is not supported by this engine.")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise bad("messages", "a list of messages")
    if any(message.get("role") not in ("user", "assistant") for message in messages):
        raise bad("role", "user or assistant; put the system prompt into the field system")
    system = text_of(body.get("system"))
    turns = [(str(m["role"]), text_of(m.get("content"))) for m in messages]
    return model.tokenizer.encode(model.tokenizer.chat([("system", system), *turns] if system else turns))


class MessageAnswer(AnswerShape):
    reports_cancelled = False  # there is no such stop_reason

    def __init__(self, id: str, model: str, tokenizer: Tokenizer, parsed: ParsedRequest) -> None:
        self._head: Json = {"id": f"msg_{id}", "type": "message", "role": "assistant", "model": model}
        self._input_tokens = len(parsed.requests[0].prompt)

    def opening(self) -> bytes:
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage(0)}
        block = {"type": "text", "text": ""}
        return _event("message_start", message=message) + _event("content_block_start", index=0, content_block=block)

    def event(self, index: int, text: str, choices: tuple[Choice, ...]) -> bytes:
        return _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def closing(self, index: int, end: GenerationEnded) -> bytes:
        delta = _event("message_delta", delta=_stop(end), usage=self._usage(end.tokens))
        return _event("content_block_stop", index=0) + delta + _event("message_stop")

    def whole(self, texts: list[str], choices: list[list[Choice]], ends: list[GenerationEnded]) -> bytes:
        content = [{"type": "text", "text": texts[0]}]
        return orjson.dumps({**self._head, "content": content, **_stop(ends[0]), "usage": self._usage(ends[0].tokens)})

    def _usage(self, output_tokens: int) -> Json:
        return {"input_tokens": self._input_tokens, "output_tokens": output_tokens}

    @staticmethod
    def error(status: int, code: str, message: str) -> Json:
        return _ERRORS.error(status, code, message)

    @classmethod
    def error_event(cls, status: int, code: str, message: str) -> bytes:
        return _ERRORS.error_event(status, code, message)


def _stop(end: GenerationEnded) -> Json:
    reason = "max_tokens" if end.reason == "length" else "stop_sequence" if end.stop else "end_turn"
    return {"stop_reason": reason, "stop_sequence": end.stop or None}


def _event(kind: str, **fields: Any) -> bytes:
    return SSE.encode(orjson.dumps({"type": kind, **fields}), kind.encode())


class MessagesCall(GenerationCall):
    shape: type[AnswerShape] = MessageAnswer
    read = staticmethod(read_messages)


class CountTokensCall(EngineCall):
    """Counts the tokens of a prompt. It does not use the engine."""

    shape: type[AnswerShape] = MessageAnswer

    def _begin(self, body: dict[str, Any]) -> None:
        counted = {"input_tokens": len(_prompt(body, self._server.runner.model))}
        self._finish_call()
        respond(self._client, 200, orjson.dumps(counted), self.id)
