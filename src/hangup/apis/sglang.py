"""SGLang's own generation: POST /generate. Its events are cumulative: each holds all the text so far."""

from __future__ import annotations

import orjson

from hangup.apis.base import Api, Ask, Assembler, Caps, Cut, Json, Usage, count_answers, count_prompts
from hangup.apis.openai_chat import DONE
from hangup.config import Limits


class SglangGenerate(Api):
    name = "sglang.generate"
    generates = True
    caps = Caps(("max_new_tokens",), table="sampling_params", minima=("min_new_tokens",))
    fields = {"text": (str, list), "input_ids": (list,), "stream": (bool,), "sampling_params": (dict,)}
    ends_with_last = False

    def count_choices(self, value: Json, limits: Limits) -> int:
        prompts = value["text"] if type(value.get("text")) is list else value.get("input_ids")
        return count_answers(value.get("sampling_params") or {}, ("n",), count_prompts(prompts), limits)

    def set_assembly(self, ask: Ask, value: Json) -> None:
        if ask.choices == 1:
            ask.assembler, ask.to_stream = SglangAssembler(), {"stream": True}

    def weigh(self, event: Json) -> int:
        return 1 if event.get("text") or event.get("output_ids") else 0

    def usage(self, event: Json) -> Usage | None:
        meta = event.get("meta_info")
        return Usage(meta.get("prompt_tokens"), meta.get("completion_tokens")) if type(meta) is dict else None

    def is_last(self, event: Json) -> bool:
        meta = event.get("meta_info")
        return type(meta) is dict and meta.get("finish_reason") is not None

    def given_up(self, event: Json) -> str | None:
        reason = (event.get("meta_info") or {}).get("finish_reason")
        if type(reason) is not dict or reason.get("type") != "abort":
            return None
        return str(reason.get("message") or "abort")

    def closing(self, cut: Cut) -> bytes:
        return self.format.encode(orjson.dumps(_cut(cut.last, cut.ask.cap.tokens))) + DONE


def _cut(event: Json, cap: int) -> Json:
    meta = {**(event.get("meta_info") or {}), "finish_reason": {"type": "length", "length": cap}}
    return {**event, "meta_info": meta}


class SglangAssembler(Assembler):
    """The last event is the answer; a server that streams differences instead is recognised by them."""

    def __init__(self) -> None:
        self._text = ""
        self._ids: list[int] = []
        self._last: Json = {}

    def add(self, event: Json) -> None:
        text, ids = event.get("text") or "", event.get("output_ids") or []
        self._text = text if text.startswith(self._text) else self._text + text
        self._ids = ids if ids[: len(self._ids)] == self._ids else self._ids + ids
        self._last = event
        self.finished = (event.get("meta_info") or {}).get("finish_reason") is not None

    def result(self, capped: bool) -> Json:
        answer = {**self._last, "text": self._text}
        if "output_ids" in self._last:
            answer["output_ids"] = self._ids
        return _cut(answer, len(self._ids)) if capped else answer
