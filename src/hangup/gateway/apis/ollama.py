"""Ollama: POST /api/chat and POST /api/generate, newline-delimited JSON, streaming by default."""

from __future__ import annotations

import orjson

from hangup.config import CallLimits
from hangup.core import reasons
from hangup.errors import Refusal
from hangup.gateway.apis.base import Api, Ask, Assembler, Caps, Cut, Json, Usage, marks
from hangup.gateway.http.sse import NDJSON


class OllamaApi(Api):
    """Both of Ollama's generation APIs; they differ only in the field of the text."""

    name = "ollama"
    generates = True
    format = NDJSON
    caps = Caps(("num_predict",), table="options", endless=-1)
    fields = {"model": (str,), "messages": (list,), "prompt": (str,), "stream": (bool,), "options": (dict,)}
    usage_mark = b"eval_count"
    text_marks = marks("response", "content", "thinking")
    open_marks = (b'"done":false', b'"done": false')

    def error(self, status: int, code: str, message: str) -> Json:
        return {"error": message}

    def read(self, path: str, value: Json, limits: CallLimits, assemble: bool) -> Ask:
        for key in value:
            if key not in self.fields and _folded(key) in self.fields:
                # Go matches keys in any case: the engine would read this one beside ours.
                raise Refusal(reasons.BAD_FIELD, f"'{_folded(key)}' must be lowercase.")
        return super().read(path, value, limits, assemble)

    def wants_stream(self, path: str, value: Json) -> bool:
        return value.get("stream") is not False

    def set_assembly(self, ask: Ask, value: Json) -> None:
        ask.assembler, ask.to_stream = OllamaAssembler(), {"stream": True}

    def weigh(self, event: Json) -> int:
        message = event.get("message") or {}
        return 1 if event.get("response") or any(message.get(k) for k in ("content", "thinking", "tool_calls")) else 0

    def usage(self, event: Json) -> Usage | None:
        return Usage(event.get("prompt_eval_count"), event.get("eval_count")) if event.get("done") is True else None

    def is_last(self, event: Json) -> bool:
        return event.get("done") is True

    def shows_progress(self, event: Json) -> bool:
        return event.get("done") is True

    def closing(self, cut: Cut) -> bytes:
        end = {**cut.beyond_cap, "done": True, "done_reason": "length", "eval_count": cut.tokens}
        if "message" in end:
            end["message"] = {"role": "assistant", "content": ""}
        else:
            end["response"] = ""
        return self.format.encode(orjson.dumps(end))


def _folded(key: str) -> str:
    """Fold a key as Go does, which also equates the long s and the Kelvin sign with letters."""
    return key.casefold()


class OllamaChat(OllamaApi):
    name = "ollama.chat"
    paths = {"/api/chat": ("POST",)}


class OllamaGenerate(OllamaApi):
    name = "ollama.generate"
    paths = {"/api/generate": ("POST",)}


class OllamaAssembler(Assembler):
    """Collects the text; the last line has everything else."""

    def __init__(self) -> None:
        self._message: Json = {}
        self._texts: dict[str, str] = {}
        self._logprobs: list[object] = []
        self._last: Json = {}
        self._tokens = 0

    def add(self, event: Json) -> None:
        for key in ("response", "thinking"):
            if type(event.get(key)) is str:
                self._texts[key] = self._texts.get(key, "") + event[key]
        if type(event.get("logprobs")) is list:
            self._logprobs += event["logprobs"]
        for key, value in (event.get("message") or {}).items():
            old = self._message.get(key)
            grows = key in ("content", "thinking") or type(value) is list
            self._message[key] = old + value if grows and old else value
        self._tokens += 1
        self._last = event
        self.finished = event.get("done") is True

    def result(self, capped: bool) -> Json:
        answer = {**self._last, **self._texts}
        if self._logprobs:
            answer["logprobs"] = self._logprobs
        if self._message:
            answer["message"] = self._message
        if capped:
            answer.update(done=True, done_reason="length", eval_count=self._tokens)
        return answer
