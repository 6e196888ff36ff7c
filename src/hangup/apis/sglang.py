"""SGLang's own generation: POST /generate. Its events are cumulative: each holds all the text so far."""

from __future__ import annotations

import orjson

from hangup.apis.base import Api, Ask, Assembler, Caps, Draft, Json, Usage, apply_caps, count_choices, expect
from hangup.apis.openai_chat import DONE
from hangup.config import Limits


class SglangGenerate(Api):
    name = "sglang.generate"
    generates = True
    caps = Caps(("max_new_tokens",), table="sampling_params")

    def read(self, path: str, body: bytes, value: Json, limits: Limits, assemble: bool) -> Ask:
        expect(value, {"text": (str, list), "input_ids": (list,), "stream": (bool,), "sampling_params": (dict,)})
        changes, cap = apply_caps(self.caps, value, limits)
        prompts = value["text"] if type(value.get("text")) is list else value.get("input_ids")
        several = len(prompts) if type(prompts) is list and prompts and type(prompts[0]) is not int else 1
        choices = count_choices(value.get("sampling_params") or {}, ("n",), several, limits)
        stream = bool(value.get("stream"))
        return Draft(path, body, value, changes).ask(
            model="",
            stream=stream,
            choices=choices,
            cap=cap,
            assembler=SglangAssembler() if assemble and not stream and choices == 1 else None,
            to_stream={"stream": True},
        )

    def usage(self, event: Json) -> Usage | None:
        meta = event.get("meta_info")
        return Usage(meta.get("prompt_tokens"), meta.get("completion_tokens")) if type(meta) is dict else None

    def is_last(self, event: Json) -> bool:
        meta = event.get("meta_info")
        return type(meta) is dict and meta.get("finish_reason") is not None

    def closing(self, ask: Ask, first: Json, last: Json, history: list[Json], tokens: int) -> bytes:
        return self.format.encode(orjson.dumps(_cut(last, ask.output_tokens_max))) + DONE


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
