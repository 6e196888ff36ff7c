"""The answers of engines' own APIs: llama.cpp, TGI, Ollama and SGLang."""

from __future__ import annotations

import time
from typing import Any

import orjson

from hangup.fake_engine.response import DONE, FakeResponse, Json, logprob, sse


class FakeLlamaCpp(FakeResponse):
    def prompt_text(self) -> str:
        return str(self.request.get("prompt", ""))

    def cap_tokens(self) -> int:
        given = self.request.get("n_predict", self.request.get("max_tokens"))
        return given if isinstance(given, int) and given >= 0 else 1 << 30

    def token(self, choice: int, index: int) -> bytes:
        progress = {"tokens_predicted": index + 1, "tokens_evaluated": self.prompt_tokens}
        return sse({"index": 0, "content": self.word(0, index), "tokens": [index], "stop": False, "id_slot": 0, **progress})

    def _final_fields(self, count: int, content: str) -> Json:
        return {
            "index": 0,
            "content": content,
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": self.model,
            "tokens_predicted": count,
            "tokens_evaluated": self.prompt_tokens,
            "prompt": self.prompt,
            "has_new_line": False,
            "truncated": False,
            "stop_type": "limit" if self.finish_reason == "length" else "eos",
            "stopping_word": "",
            "tokens_cached": self.prompt_tokens + count,
        }

    def closing(self, count: int) -> list[bytes]:
        return [sse(self._final_fields(count, ""))]

    def whole(self, count: int) -> Json:
        answer = self._final_fields(count, self.text(0, count))
        return {**answer, "tokens": list(range(count)) if self.request.get("return_tokens") else []}


class FakeTgi(FakeResponse):
    always_streams = False

    def __init__(self, request: Json, id: str, model: str) -> None:
        super().__init__(request, id, model)
        self.stream = self.always_streams

    def prompt_text(self) -> str:
        return str(self.request.get("inputs", ""))

    def cap_tokens(self) -> int:
        given = (self.request.get("parameters") or {}).get("max_new_tokens")
        return given if isinstance(given, int) and given > 0 else 1 << 30

    def _token(self, index: int) -> Json:
        word = self.word(0, index)
        return {"id": index, "text": word, "logprob": logprob(word, 0)["logprob"], "special": False}

    def _details(self, count: int) -> Json:
        reason = "length" if self.finish_reason == "length" else "eos_token"
        return {"finish_reason": reason, "generated_tokens": count, "seed": None}

    def token(self, choice: int, index: int) -> bytes:
        last = index + 1 >= self.length
        text = self.text(0, index + 1) if last else None
        details = {**self._details(index + 1), "input_length": self.prompt_tokens} if last else None
        return sse({"index": index + 1, "token": self._token(index), "generated_text": text, "details": details})

    def closing(self, count: int) -> list[bytes]:
        return []

    def whole(self, count: int) -> Json:
        answer: Json = {"generated_text": self.text(0, count)}
        if (self.request.get("parameters") or {}).get("details"):
            tokens = [self._token(index) for index in range(count)]
            answer["details"] = {**self._details(count), "prefill": [], "tokens": tokens}
        return answer


class FakeTgiStream(FakeTgi):
    always_streams = True


class FakeOllama(FakeResponse):
    content_type = b"application/x-ndjson"
    stream_default = True
    chat = True

    def prompt_text(self) -> str:
        return super().prompt_text() if self.chat else str(self.request.get("prompt", ""))

    def cap_tokens(self) -> int:
        given = (self.request.get("options") or {}).get("num_predict")
        return given if isinstance(given, int) and given >= 0 else 1 << 30

    def _line(self, text: str, **fields: Any) -> Json:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.created))
        body = {"message": {"role": "assistant", "content": text}} if self.chat else {"response": text}
        return {"model": self.model, "created_at": stamp, **body, **fields}

    def _final_fields(self, count: int) -> Json:
        counts = {"prompt_eval_count": self.prompt_tokens, "eval_count": count}
        return {
            "done": True,
            "done_reason": self.finish_reason,
            "total_duration": 1,
            "load_duration": 1,
            **counts,
            "eval_duration": 1,
        }

    def token(self, choice: int, index: int) -> bytes:
        return orjson.dumps(self._line(self.word(0, index), done=False)) + b"\n"

    def closing(self, count: int) -> list[bytes]:
        return [orjson.dumps(self._line("", **self._final_fields(count))) + b"\n"]

    def whole(self, count: int) -> Json:
        return self._line(self.text(0, count), **self._final_fields(count))


class FakeOllamaGenerate(FakeOllama):
    chat = False


class FakeSglang(FakeResponse):
    def prompt_text(self) -> str:
        return str(self.request.get("text", self.request.get("input_ids", "")))

    def cap_tokens(self) -> int:
        given = (self.request.get("sampling_params") or {}).get("max_new_tokens")
        return given if isinstance(given, int) and given > 0 else 1 << 30

    def _event(self, count: int, finish: Json | None) -> Json:
        meta = {"id": self.id, "finish_reason": finish, "prompt_tokens": self.prompt_tokens, "completion_tokens": count}
        return {"text": self.text(0, count), "output_ids": list(range(count)), "meta_info": meta}

    def _finish(self, count: int) -> Json:
        return {"type": "length", "length": count} if self.finish_reason == "length" else {"type": "stop", "matched": 2}

    def token(self, choice: int, index: int) -> bytes:
        last = index + 1 >= self.length
        return sse(self._event(index + 1, self._finish(index + 1) if last else None))

    def closing(self, count: int) -> list[bytes]:
        return [DONE]

    def whole(self, count: int) -> Json:
        return self._event(count, self._finish(count))
