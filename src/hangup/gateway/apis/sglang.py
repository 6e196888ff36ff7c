"""SGLang's own generation API: POST /generate. Its events are cumulative: each has all the text so far."""

from __future__ import annotations

import orjson

from hangup.config import CallLimits
from hangup.gateway.apis.base import Api, Ask, Assembler, Caps, Cut, Json, Usage, count_answers, count_prompts
from hangup.gateway.apis.openai_chat import DONE


class SglangGenerate(Api):
    name = "sglang.generate"
    generates = True
    caps = Caps(("max_new_tokens",), table="sampling_params", minima=("min_new_tokens",))
    fields = {"text": (str, list), "input_ids": (list,), "stream": (bool,), "sampling_params": (dict,)}
    ends_with_last = False

    def count_choices(self, value: Json, limits: CallLimits) -> int:
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

    def abandoned_reason(self, event: Json) -> str | None:
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
    """Returns the last event as the answer, unless the server streams deltas, of ids alone or also of texts (`--stream-output`,
    `--incremental-streaming-output`).

    The server reports which, if it can be asked; otherwise deltas are recognised as soon as they cannot be anything else.
    """

    def __init__(self) -> None:
        self._text = ""
        self._lengths: list[int] = []  # of the texts so far, as long as each may contain all before it
        self._text_grows = True
        self._ids: list[int] = []
        self._ids_grow = True
        self._last: Json = {}

    def add(self, event: Json) -> None:
        meta = event.get("meta_info") or {}
        self._add_ids(event.get("output_ids") or [], meta.get("completion_tokens"))
        self._add_text(event.get("text") or "")
        self._last = event
        self.finished = meta.get("finish_reason") is not None

    def _add_ids(self, ids: list[int], tokens: object) -> None:
        fewer = type(tokens) is int and 0 < len(ids) < tokens
        if self._ids_grow and self._ids and (fewer or ids[: len(self._ids)] != self._ids):
            self._ids_grow = False
        self._ids = ids if self._ids_grow else self._ids + ids

    def _add_text(self, text: str) -> None:
        if self.texts_in_pieces is not None:
            self._text = self._text + text if self.texts_in_pieces else text
            return
        # The same text again, with other ids, is a delta; a text that starts with the previous one may be cumulative.
        again = not self._ids_grow and text == self._text != ""
        if self._text_grows and (again or not text.startswith(self._text)):
            self._text_grows = False
            self._text = "".join(self._text[:length] for length in self._lengths)
        if self._text_grows:
            self._text = text
            self._lengths.append(len(text))
        else:
            self._text += text

    def result(self, capped: bool) -> Json:
        answer = {**self._last, "text": self._text}
        if "output_ids" in self._last:
            answer["output_ids"] = self._ids
        return _cut(answer, len(self._ids)) if capped else answer
