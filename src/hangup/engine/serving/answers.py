"""The shapes of answers, streamed and whole: the base for all APIs, and OpenAI's chat and completions."""

from __future__ import annotations

import time
from typing import Any

import orjson

from hangup.engine.request import Choice, GenerationEnded
from hangup.engine.serving.requests import ParsedRequest
from hangup.engine.tokenizer import Tokenizer

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


class AnswerShape:
    """The shape of one call's answer and of its errors, in one API."""

    reports_cancelled = True  # whether an answer can say that it was cancelled; if not, it ends with an error

    def __init__(self, id: str, model: str, tokenizer: Tokenizer, parsed: ParsedRequest) -> None:
        raise NotImplementedError

    def opening(self) -> bytes:
        """Return the first bytes of a stream."""
        return b""

    def event(self, index: int, text: str, choices: tuple[Choice, ...]) -> bytes:
        raise NotImplementedError

    def closing(self, index: int, end: GenerationEnded) -> bytes:
        """Return the end of one choice."""
        raise NotImplementedError

    def last(self, ends: list[GenerationEnded]) -> bytes:
        """Return the end of the stream, which follows the end of every choice."""
        return b""

    def whole(self, texts: list[str], choices: list[list[Choice]], ends: list[GenerationEnded]) -> bytes:
        raise NotImplementedError

    @staticmethod
    def error(status: int, code: str, message: str) -> Json:
        return error(status, code, message)

    @classmethod
    def error_event(cls, status: int, code: str, message: str) -> bytes:
        return b"data: " + orjson.dumps(cls.error(status, code, message)) + b"\n\n"


class ChoicesAnswer(AnswerShape):
    """An answer with OpenAI's `choices`. Subclasses define what differs between chat and completions."""

    object = ""
    chunk_object = ""
    prefix = ""

    def __init__(self, id: str, model: str, tokenizer: Tokenizer, parsed: ParsedRequest) -> None:
        self._head: Json = {"id": f"{self.prefix}-{id}", "object": self.object, "created": int(time.time()), "model": model}
        self._tokenizer = tokenizer
        self._parsed = parsed

    def event(self, index: int, text: str, choices: tuple[Choice, ...]) -> bytes:
        return self._chunk([{"index": index, **self.piece(text), "logprobs": self.logprobs(choices), "finish_reason": None}])

    def closing(self, index: int, end: GenerationEnded) -> bytes:
        return self._chunk([{"index": index, **self.last_piece(), "logprobs": None, "finish_reason": end.reason}])

    def last(self, ends: list[GenerationEnded]) -> bytes:
        return (self._chunk([], usage=usage(ends, self._parsed.prompts)) if self._parsed.usage_in_stream else b"") + DONE

    def _chunk(self, choices: list[Json], **extra: Any) -> bytes:
        head = {**self._head, "object": self.chunk_object}
        return b"data: " + orjson.dumps({**head, "choices": choices, **extra}) + b"\n\n"

    def whole(self, texts: list[str], choices: list[list[Choice]], ends: list[GenerationEnded]) -> bytes:
        rows = [
            {"index": index, **self.message(text), "logprobs": self.logprobs(tuple(chosen)), "finish_reason": end.reason}
            for index, (text, chosen, end) in enumerate(zip(texts, choices, ends, strict=True))
        ]
        return orjson.dumps({**self._head, "choices": rows, "usage": usage(ends, self._parsed.prompts)})

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


class ChatAnswer(ChoicesAnswer):
    object, chunk_object, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def opening(self) -> bytes:
        extra = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return b"".join(self._chunk([{"index": index, **extra}]) for index in range(len(self._parsed.requests)))

    def piece(self, text: str) -> Json:
        return {"delta": {"content": text}}

    def last_piece(self) -> Json:
        return {"delta": {}}

    def message(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}

    def logprobs(self, choices: tuple[Choice, ...]) -> Json | None:
        rows = [{**self._named(c.token, c.logprob), "top_logprobs": [self._named(*pair) for pair in c.top]} for c in choices]
        return {"content": rows} if rows else None


class CompletionAnswer(ChoicesAnswer):
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


def usage(ends: list[GenerationEnded], prompts: int) -> Json:
    """Return the usage object. Each prompt counts once, however many answers it got."""
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
