"""OpenAI chat completions: POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

import orjson

from hangup.apis.base import Api, Ask, Assembler, Caps, Draft, Json, Usage, apply_caps, count_choices, expect, merge
from hangup.config import Limits

DONE = b"data: [DONE]\n\n"


class OpenAIStream(Api):
    """What chat and text completions have in common: chunks with choices, usage at the end, then [DONE]."""

    generates = True
    needles = (b'"finish_reason":null', b'"finish_reason": null')
    chunk_object = ""

    def usage(self, event: Json) -> Usage | None:
        return openai_usage(event.get("usage"))

    def is_last(self, event: Json) -> bool:
        # Most engines close with [DONE], some with the finish reason or the usage alone.
        choices = event.get("choices")
        if choices:
            return any(c.get("finish_reason") for c in choices if type(c) is dict)
        return choices is not None and event.get("usage") is not None

    def closing(self, ask: Ask, first: Json, last: Json, history: list[Json], tokens: int) -> bytes:
        frame = {k: v for k, v in last.items() if k not in ("choices", "usage")}
        ends = [{**frame, "choices": [self.closing_choice(index)]} for index in range(ask.choices)]
        return b"".join(self.format.encode(orjson.dumps(end)) for end in ends) + DONE

    def closing_choice(self, index: int) -> Json:
        raise NotImplementedError


class OpenAIChat(OpenAIStream):
    name = "openai.chat"
    caps = Caps(("max_tokens", "max_completion_tokens"))

    def read(self, path: str, body: bytes, value: Json, limits: Limits, assemble: bool) -> Ask:
        expect(value, {"model": (str,), "messages": (list,), "stream": (bool,), "stream_options": (dict,), "tools": (list,)})
        changes, cap = apply_caps(self.caps, value, limits)
        choices = count_choices(value, ("n",), 1, limits)
        stream = bool(value.get("stream"))
        return Draft(path, body, value, changes).ask(
            model=value.get("model") or "",
            stream=stream,
            choices=choices,
            cap=cap,
            assembler=ChatAssembler() if assemble and not stream else None,
            to_stream=streaming_fields(value),
        )

    def weigh(self, event: Json) -> int:
        return sum(1 for c in _choices(event) if _has_token(c.get("delta") or {}))

    def closing_choice(self, index: int) -> Json:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": "length"}


def streaming_fields(value: Json) -> Json:
    return {"stream": True, "stream_options": {**(value.get("stream_options") or {}), "include_usage": True}}


def openai_usage(usage: Any) -> Usage | None:
    if type(usage) is not dict:
        return None
    return Usage(usage.get("prompt_tokens"), usage.get("completion_tokens"))


def _choices(event: Json) -> list[Json]:
    choices = event.get("choices")
    return [c for c in choices if type(c) is dict] if type(choices) is list else []


def _has_token(delta: Json) -> bool:
    if type(delta) is not dict:
        return False
    return any(
        delta.get(key) for key in ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
    )


class ChatAssembler(Assembler):
    """Merges the deltas of each choice into its message."""

    def __init__(self) -> None:
        self._answer: Json = {}
        self._choices: dict[int, Json] = {}

    def add(self, event: Json) -> None:
        for key, value in event.items():
            if key != "choices" and (value is not None or key not in self._answer):
                self._answer[key] = value
        for choice in _choices(event):
            self._add_choice(choice)

    def _add_choice(self, choice: Json) -> None:
        mine = self._choices.setdefault(choice.get("index", 0), {"message": {"role": "assistant", "content": None}})
        delta = dict(choice.get("delta") or {})
        calls = delta.pop("tool_calls", None) or []
        merge(mine["message"], {k: v for k, v in delta.items() if k != "role"} | _role(delta))
        for call in calls:
            self._add_tool_call(mine["message"], call)
        merge(mine, {k: v for k, v in choice.items() if k not in ("index", "delta")})
        self.finished = self.finished or bool(choice.get("finish_reason"))

    @staticmethod
    def _add_tool_call(message: Json, call: Json) -> None:
        calls = message.setdefault("tool_calls", [])
        index = call.get("index", len(calls))
        while len(calls) <= index and len(calls) < 1024:
            calls.append({})
        call = {k: v for k, v in call.items() if k != "index"}
        if calls[index].get("function", {}).get("name") and call.get("function", {}).get("name"):
            call["function"] = {k: v for k, v in call["function"].items() if k != "name"}  # repeated, not continued
        merge(calls[index], call)

    def result(self, capped: bool) -> Json:
        choices = []
        for index in sorted(self._choices):
            choice = self._choices[index]
            choice.setdefault("logprobs", None)
            if capped and not choice.get("finish_reason"):
                choice["finish_reason"] = "length"
            if choice["message"].get("tool_calls") and choice["message"].get("content") == "":
                choice["message"]["content"] = None
            choices.append({"index": index, **choice})
        answer = {k: v for k, v in self._answer.items() if k != "usage"}
        answer["object"] = "chat.completion"
        answer["choices"] = choices
        if self._answer.get("usage") is not None:
            answer["usage"] = self._answer["usage"]
        return answer


def _role(delta: Json) -> Json:
    return {"role": delta["role"]} if delta.get("role") else {}
