"""llama.cpp's own completion API: POST /completion."""

from __future__ import annotations

from typing import Final

import orjson

from hangup.config import CallLimits
from hangup.gateway.apis.base import Api, Ask, Assembler, Caps, Cut, Json, Usage, count_answers, marks

# It generates one token even with a maximum of 0, and continues to the end of a character.
LATE_TOKENS: Final = 4


class LlamaCppCompletion(Api):
    name = "llamacpp.completion"
    paths = {"/completion": ("POST",)}
    generates = True
    caps = Caps(("n_predict", "max_tokens"), endless=-1)
    fields = {"prompt": (str, list, dict), "stream": (bool,), "model": (str,)}
    usage_mark = b"tokens_predicted"
    text_marks = marks("content")
    open_marks = (b'"stop":false', b'"stop": false')

    def error(self, status: int, code: str, message: str) -> Json:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"code": status, "message": message, "type": kind}}

    def count_choices(self, value: Json, limits: CallLimits) -> int:
        return count_answers(value, ("n", "n_cmpl"), _count_prompts(value.get("prompt")), limits)

    def read(self, path: str, value: Json, limits: CallLimits, assemble: bool) -> Ask:
        ask = super().read(path, value, limits, assemble)
        if ask.cap.named:
            ask.ends_late(LATE_TOKENS)
        return ask

    def set_assembly(self, ask: Ask, value: Json) -> None:
        # Several answers form a list, whose parts a stream does not distinguish.
        if ask.choices == 1:
            ask.assembler, ask.to_stream = LlamaCppAssembler(bool(value.get("return_tokens"))), {"stream": True}

    def weigh(self, event: Json) -> int:
        return 1 if event.get("content") or event.get("tokens") else 0

    def usage(self, event: Json) -> Usage | None:
        if event.get("stop") is True or "tokens_predicted" in event:
            return Usage(event.get("tokens_evaluated"), event.get("tokens_predicted"))
        return None

    def is_last(self, event: Json) -> bool:
        return event.get("stop") is True

    def shows_progress(self, event: Json) -> bool:
        return event.get("stop") is True

    def closing(self, cut: Cut) -> bytes:
        end = {**cut.beyond_cap, "content": "", "tokens": [], "tokens_predicted": cut.tokens}
        end |= {"stop": True, "stop_type": "limit", "stopping_word": "", "truncated": False}
        return self.format.encode(orjson.dumps(end))


def _count_prompts(prompt: object) -> int:
    """Return the number of prompts: a list of texts and token ids is one; a list with lists or objects in it has several."""
    several = type(prompt) is list and any(type(part) not in (int, str) for part in prompt)
    return len(prompt) if several and type(prompt) is list else 1


class LlamaCppAssembler(Assembler):
    """Collects the text; the last event has everything else."""

    def __init__(self, with_tokens: bool) -> None:
        self._kept = ("tokens", "completion_probabilities") if with_tokens else ("completion_probabilities",)
        self._text: list[str] = []
        self._lists: dict[str, list[object]] = {}
        self._last: Json = {}

    def add(self, event: Json) -> None:
        self._text.append(event.get("content") or "")
        for key in self._kept:
            if type(event.get(key)) is list:
                self._lists.setdefault(key, []).extend(event[key])
        self._last = event
        self.finished = event.get("stop") is True

    def result(self, capped: bool) -> Json:
        answer = {**self._last, "content": "".join(self._text)}
        answer.update({key: self._lists[key] for key in self._lists if self._lists[key] or key in self._last})
        if type(answer.get("generation_settings")) is dict:
            answer["generation_settings"]["stream"] = False  # as the client asked
        if capped:
            answer.update(stop=True, stop_type="limit", stopping_word="")
        return answer
