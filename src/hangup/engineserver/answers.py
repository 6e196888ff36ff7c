"""What OpenAI's chat and completions answers look like, streamed and whole."""

from __future__ import annotations

import time
from typing import Any

import orjson

from hangup.embedded.request import Choice, Ended
from hangup.embedded.tokenizer import Tokenizer

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


class Answer:
    """The shape of one call's answer; subclasses say what differs between the two APIs."""

    object = ""
    chunk_object = ""
    prefix = ""

    def __init__(self, id: str, model: str, tokenizer: Tokenizer) -> None:
        self._head: Json = {"id": f"{self.prefix}-{id}", "object": self.object, "created": int(time.time()), "model": model}
        self._tokenizer = tokenizer

    def opening(self, index: int) -> bytes:
        return b""

    def event(self, index: int, text: str, choices: tuple[Choice, ...]) -> bytes:
        return self._chunk([{"index": index, **self.piece(text), "logprobs": self.logprobs(choices), "finish_reason": None}])

    def closing(self, index: int, reason: str) -> bytes:
        return self._chunk([{"index": index, **self.last_piece(), "logprobs": None, "finish_reason": reason}])

    def usage_event(self, ends: list[Ended], prompts: int) -> bytes:
        return self._chunk([], usage=usage(ends, prompts))

    def _chunk(self, choices: list[Json], **more: Any) -> bytes:
        head = {**self._head, "object": self.chunk_object}
        return b"data: " + orjson.dumps({**head, "choices": choices, **more}) + b"\n\n"

    def whole(self, texts: list[str], choices: list[list[Choice]], ends: list[Ended], prompts: int) -> bytes:
        rows = [
            {"index": index, **self.message(text), "logprobs": self.logprobs(tuple(chosen)), "finish_reason": end.reason}
            for index, (text, chosen, end) in enumerate(zip(texts, choices, ends, strict=True))
        ]
        return orjson.dumps({**self._head, "choices": rows, "usage": usage(ends, prompts)})

    def piece(self, text: str) -> Json:
        raise NotImplementedError

    def last_piece(self) -> Json:
        raise NotImplementedError

    def message(self, text: str) -> Json:
        raise NotImplementedError

    def logprobs(self, choices: tuple[Choice, ...]) -> Json | None:
        raise NotImplementedError

    def _named(self, token: int, logprob: float) -> Json:
        text = self._tokenizer.token_text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


class ChatAnswer(Answer):
    object, chunk_object, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def opening(self, index: int) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def piece(self, text: str) -> Json:
        return {"delta": {"content": text}}

    def last_piece(self) -> Json:
        return {"delta": {}}

    def message(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}

    def logprobs(self, choices: tuple[Choice, ...]) -> Json | None:
        rows = [{**self._named(c.token, c.logprob), "top_logprobs": [self._named(*pair) for pair in c.top]} for c in choices]
        return {"content": rows} if rows else None


class CompletionAnswer(Answer):
    object, chunk_object, prefix = "text_completion", "text_completion", "cmpl"

    def piece(self, text: str) -> Json:
        return {"text": text}

    def last_piece(self) -> Json:
        return {"text": ""}

    def message(self, text: str) -> Json:
        return {"text": text}

    def logprobs(self, choices: tuple[Choice, ...]) -> Json | None:
        if not choices:
            return None
        return {
            "tokens": [self._tokenizer.token_text(c.token) for c in choices],
            "token_logprobs": [c.logprob for c in choices],
            "top_logprobs": [{self._tokenizer.token_text(token): logprob for token, logprob in c.top} for c in choices],
        }


def usage(ends: list[Ended], prompts: int) -> Json:
    """Each prompt counts once, however many answers it got."""
    per_prompt = len(ends) // prompts
    prompt_tokens = sum(end.prompt_tokens for end in ends[::per_prompt])
    tokens = sum(end.tokens for end in ends)
    accepted, drafted = sum(end.accepted for end in ends), sum(end.drafted for end in ends)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
        "completion_tokens_details": {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted},
    }


def error(status: int, code: str, message: str) -> Json:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "code": code}}
