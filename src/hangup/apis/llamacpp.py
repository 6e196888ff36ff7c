"""llama.cpp's own completion: POST /completion."""

from __future__ import annotations

import orjson

from hangup.apis.base import Api, Ask, Assembler, Caps, Draft, Json, Usage, apply_caps, count_choices, expect
from hangup.config import Limits


class LlamaCppCompletion(Api):
    name = "llamacpp.completion"
    generates = True
    caps = Caps(("n_predict", "max_tokens"), negative_is_endless=True)
    needles = (b'"stop":false', b'"stop": false')

    def error(self, status: int, code: str, message: str) -> Json:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"code": status, "message": message, "type": kind}}

    def read(self, path: str, body: bytes, value: Json, limits: Limits, assemble: bool) -> Ask:
        expect(value, {"prompt": (str, list, dict), "stream": (bool,), "model": (str,)})
        changes, cap = apply_caps(self.caps, value, limits)
        prompt = value.get("prompt")
        many = type(prompt) is list and any(type(p) is not int and type(p) is not str for p in prompt)
        choices = count_choices(value, ("n", "n_cmpl"), len(prompt) if many and type(prompt) is list else 1, limits)
        stream = bool(value.get("stream"))
        return Draft(path, body, value, changes).ask(
            model=value.get("model") or "",
            stream=stream,
            choices=choices,
            cap=cap,
            # Several prompts are answered with a list whose parts a stream does not tell apart.
            assembler=LlamaCppAssembler() if assemble and not stream and choices == 1 else None,
            to_stream={"stream": True},
        )

    def weigh(self, event: Json) -> int:
        return 1 if event.get("content") or event.get("tokens") else 0

    def usage(self, event: Json) -> Usage | None:
        if event.get("stop") is True or "tokens_predicted" in event:
            return Usage(event.get("tokens_evaluated"), event.get("tokens_predicted"))
        return None

    def is_last(self, event: Json) -> bool:
        return event.get("stop") is True

    def closing(self, ask: Ask, first: Json, last: Json, history: list[Json], tokens: int) -> bytes:
        end = {**last, "content": "", "tokens": [], "stop": True, "stop_type": "limit", "stopping_word": "", "truncated": False}
        return self.format.encode(orjson.dumps(end))


class LlamaCppAssembler(Assembler):
    """The last event has all but the text."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._lists: dict[str, list[object]] = {}
        self._last: Json = {}

    def add(self, event: Json) -> None:
        self._text.append(event.get("content") or "")
        for key in ("tokens", "completion_probabilities"):
            if type(event.get(key)) is list:
                self._lists.setdefault(key, []).extend(event[key])
        self._last = event
        self.finished = event.get("stop") is True

    def result(self, capped: bool) -> Json:
        answer = {**self._last, "content": "".join(self._text)}
        answer.update({key: self._lists[key] for key in self._lists if self._lists[key] or key in self._last})
        if capped:
            answer.update(stop=True, stop_type="limit", stopping_word="")
        return answer
