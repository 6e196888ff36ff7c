"""OpenAI chat completions: POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any, Final

import orjson

from hangup.config import CallLimits
from hangup.gateway.apis.base import (
    Api,
    Ask,
    Assembler,
    Caps,
    Cut,
    EventFacts,
    Json,
    Usage,
    count_answers,
    marks,
    merge,
    merge_choice,
)

DONE: Final = b"data: [DONE]\n\n"
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_TOOL_CALLS_MAX: Final = 1024
_NO_DELTA: Json = {}
_PLAIN: Final = frozenset(["role", "content"])
_USAGE: Final = EventFacts(0, last=True, moved=True, all_text=False)
_NOTHING: Final = EventFacts(0, last=False, moved=False, all_text=False)
_TEXT_ALONE: Final = EventFacts(1, last=False, moved=True, all_text=True)
_TEXT_AND_MORE: Final = EventFacts(1, last=False, moved=True, all_text=False)
# How engines report that they were aborted or failed: vLLM and SGLang, hangup's own and others.
_ABANDONED = ("abort", "aborted", "cancelled", "canceled", "error")


class OpenAIStream(Api):
    """The common part of chat and text completions: chunks with choices, usage at the end, then [DONE]."""

    generates = True
    open_marks = (b'"finish_reason":null', b'"finish_reason": null')
    ends_with_last = False

    def usage(self, event: Json) -> Usage | None:
        usage: Any = event.get("usage")
        return Usage(usage.get("prompt_tokens"), usage.get("completion_tokens")) if usage else None

    def is_last(self, event: Json) -> bool:
        # Most engines end with [DONE], some only with the finish reason or the usage.
        choices = event.get("choices")
        if choices:
            for choice in choices:  # noqa: SIM110 (a generator costs more)
                if choice.get("finish_reason"):
                    return True
            return False
        return choices is not None and event.get("usage") is not None

    def ended(self, event: Json) -> list[int]:
        return [c.get("index") or 0 for c in event.get("choices") or () if c.get("finish_reason")]

    def abandoned_reason(self, event: Json) -> str | None:
        for choice in event.get("choices") or ():
            reason = choice.get("finish_reason")
            if reason in _ABANDONED:
                return str(reason)
        return None

    def closing(self, cut: Cut) -> bytes:
        frame = {k: v for k, v in cut.beyond_cap.items() if k not in ("choices", "usage")}
        open_choices = [index for index in range(cut.ask.choices) if index not in cut.ended]
        ends = [{**frame, "choices": [self.closing_choice(index)]} for index in open_choices]
        return b"".join(self.format.encode(orjson.dumps(end)) for end in ends) + DONE

    def closing_choice(self, index: int) -> Json:
        raise NotImplementedError


class OpenAIChat(OpenAIStream):
    name = "openai.chat"
    paths = {"/v1/chat/completions": ("POST",)}
    caps = Caps(("max_tokens", "max_completion_tokens"), minima=("min_tokens",))
    fields = {"model": (str,), "messages": (list,), "stream": (bool,), "stream_options": (dict,), "tools": (list,)}
    text_marks = marks(*_TEXTS, "arguments")
    text_mark = b'"delta":{"content":"'

    def count_choices(self, value: Json, limits: CallLimits) -> int:
        return count_answers(value, ("n", "best_of"), 1, limits)

    def set_assembly(self, ask: Ask, value: Json) -> None:
        # OpenAI cannot stream the audio formats of its whole answers (WAV, MP3).
        if not value.get("audio") and "audio" not in (value.get("modalities") or ()):
            ask.assembler, ask.to_stream = ChatAssembler(), streaming_fields(value)

    def look(self, event: Json) -> EventFacts:
        choices = event["choices"]
        if len(choices) > 1 or "error" in event:
            return super().look(event)
        if not choices:
            return _NOTHING if event.get("usage") is None else _USAGE
        choice = choices[0]
        delta, end = choice["delta"], choice.get("finish_reason")
        if not delta.keys() <= _PLAIN:
            return super().look(event)
        # The usual case, where one look answers what the methods below ask one by one.
        text = delta.get("content")
        if end:
            reason = str(end) if end in _ABANDONED else None
            return EventFacts(1 if text else 0, True, True, False, (choice.get("index") or 0,), reason)
        if not text:
            return _NOTHING
        for key, value in choice.items():
            if value is not None and key not in ("delta", "index"):
                return _TEXT_AND_MORE
        return _TEXT_ALONE

    def weigh(self, event: Json) -> int:
        return sum(map(_has_token, event.get("choices") or ()))

    def is_all_text(self, event: Json) -> bool:
        if not adds_only_text(event, "delta"):
            return False
        for key, value in event["choices"][0]["delta"].items():
            if value is not None and key not in ("content", "role"):
                return False
        return True

    def shows_progress(self, event: Json) -> bool:
        """An unknown field, such as audio, is part of the answer, too."""
        for choice in event.get("choices") or ():
            for key, value in (choice.get("delta") or _NO_DELTA).items():
                if value and key != "role":
                    return True
        return self.is_last(event)

    def closing_choice(self, index: int) -> Json:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": "length"}


def _has_token(choice: Json) -> bool:
    delta = choice.get("delta")
    if not delta:
        return False
    if any(map(delta.get, _TEXTS)):
        return True
    if "tool_calls" not in delta and "function_call" not in delta:
        return False
    calls = [c.get("function") or {} for c in delta.get("tool_calls") or ()] + [delta.get("function_call") or {}]
    return any(call.get("name") or call.get("arguments") for call in calls)


def adds_only_text(event: Json, where: str) -> bool:
    """Return True if the event has one choice with nothing else to collect: no logprobs, no token ids."""
    choices = event["choices"]
    if len(choices) != 1:
        return False
    for key, value in choices[0].items():  # noqa: SIM110 (a generator costs more)
        if value is not None and key not in (where, "index"):
            return False
    return True


def streaming_fields(value: Json) -> Json:
    """Return the fields that make an engine stream, and report usage at the end."""
    return {"stream": True, "stream_options": {**(value.get("stream_options") or {}), "include_usage": True}}


class ChoicesAssembler(Assembler):
    """Merges the chunks choice by choice; subclasses know the contents of a choice."""

    object = ""

    def __init__(self) -> None:
        self._answer: Json = {}
        self._choices: dict[int, Json] = {}

    def add(self, event: Json) -> None:
        choices = event.pop("choices", None) or ()
        if "obfuscation" in event:  # meaningless padding of stream events
            del event["obfuscation"]
        if not self._answer:
            self._answer = event
        elif event.keys() != self._answer.keys() or event.get("usage"):  # otherwise the chunk only repeats these fields
            self._answer.update({key: value for key, value in event.items() if value is not None})
        for choice in choices:
            index = choice.pop("index", 0) or 0
            mine = self._choices.get(index)
            if mine is None:
                mine = self._choices[index] = self.new_choice()
            self.add_choice(mine, choice)
            if choice.get("finish_reason"):
                self.finished = True

    def new_choice(self) -> Json:
        raise NotImplementedError

    def add_choice(self, mine: Json, choice: Json) -> None:
        raise NotImplementedError

    def result(self, capped: bool) -> Json:
        answer, choices = self._answer, []
        for index in sorted(self._choices):
            choice = self._choices[index]
            if capped and not choice.get("finish_reason"):
                choice["finish_reason"] = "length"
            choices.append({"index": index, **choice})
        usage = answer.pop("usage", None)
        answer["object"] = self.object
        answer["choices"] = choices
        if usage is not None:
            answer["usage"] = usage
        return answer


class ChatAssembler(ChoicesAssembler):
    object = "chat.completion"

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[int, int], int] = {}  # positions of tool calls in their message, by message and index

    def new_choice(self) -> Json:
        return {"message": {"role": "assistant", "content": None}}

    def add_choice(self, mine: Json, choice: Json) -> None:
        delta = choice.pop("delta", None)
        if delta:
            message = mine["message"]
            if "tool_calls" in delta:
                for call in delta.pop("tool_calls") or ():
                    self._add_tool_call(message, call)
            merge(message, delta)
        merge_choice(mine, choice)

    def _add_tool_call(self, message: Json, call: Json) -> None:
        calls = message.setdefault("tool_calls", [])
        index = call.pop("index", None)
        if index is None:
            place = self._place_without_index(calls, call)
        else:
            key = (id(message), index)
            place = self._places.setdefault(key, index)
            # Some engines give all their calls the same index: another name with another id is another call. The id alone
            # proves nothing, because some engines give each piece a new one.
            if place < len(calls) and _name_of(call) and _name_of(calls[place]) and call.get("id") != calls[place].get("id"):
                place = self._places[key] = len(calls)
        while len(calls) <= place and len(calls) < _TOOL_CALLS_MAX:
            calls.append({})
        merge(calls[place], call)

    @staticmethod
    def _place_without_index(calls: list[Json], call: Json) -> int:
        """Return the position of a piece: one with a name begins a new call, others belong to the last one."""
        same = [place for place, known in enumerate(calls) if call.get("id") and known.get("id") == call["id"]]
        if same:
            return same[0]
        return len(calls) if not calls or _name_of(call) else len(calls) - 1

    def result(self, capped: bool) -> Json:
        for choice in self._choices.values():
            message = choice["message"]
            if message.get("tool_calls") and message.get("content") == "":
                message["content"] = None
        return super().result(capped)


def _name_of(call: Json) -> object:
    return (call.get("function") or {}).get("name")
