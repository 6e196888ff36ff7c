"""Parses request bodies into `SubmittedRequest`s: OpenAI's chat and completions, and what all APIs have in common.

An invalid field raises a `Refusal` that names it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hangup.core import reasons
from hangup.engine.model import Model
from hangup.engine.request import SubmittedRequest
from hangup.errors import Refusal

STOPS_MAX = 16
STOP_CHARS_MAX = 256
LOGPROBS_MAX = 20
COMPLETION_TOKENS_DEFAULT = 16  # OpenAI's default for /v1/completions; chat's default is the rest of the context
# Fields that would change the answer but that this engine does not support; empty values are accepted.
_UNSUPPORTED = ("tools", "functions", "suffix", "echo", "best_of", "response_format", "logit_bias")


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    requests: list[SubmittedRequest]  # one for each choice
    stream: bool
    usage_in_stream: bool
    prompts: int
    echoed: dict[str, Any] = field(default_factory=dict)  # request fields that the answer repeats


def read_chat(body: dict[str, Any], model: Model, choices_max: int, name: str) -> ParsedRequest:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise bad("messages", "a list of messages")
    text = model.tokenizer.chat([(str(m.get("role", "user")), text_of(m.get("content"))) for m in messages])
    wanted = body.get("max_completion_tokens", body.get("max_tokens"))
    logprobs = _integer(body, "top_logprobs", 0, LOGPROBS_MAX, 0) if body.get("logprobs") else None
    return read_prompts(body, model, choices_max, name, [model.tokenizer.encode(text)], wanted, model.context, logprobs)


def read_completion(body: dict[str, Any], model: Model, choices_max: int, name: str) -> ParsedRequest:
    given = body.get("prompt", "")
    prompts = given if isinstance(given, list) and not all(isinstance(p, int) for p in given) else [given]
    encoded = [tokens_of(prompt, model) for prompt in prompts]
    logprobs = None if body.get("logprobs") is None else _integer(body, "logprobs", 0, LOGPROBS_MAX, 0)
    return read_prompts(body, model, choices_max, name, encoded, body.get("max_tokens"), COMPLETION_TOKENS_DEFAULT, logprobs)


def read_prompts(
    body: dict[str, Any],
    model: Model,
    choices_max: int,
    name: str,
    prompts: list[list[int]],
    wanted: Any,
    default: int,
    logprobs: int | None,
    maximum: str = "max_tokens",
) -> ParsedRequest:
    refuse_unsupported(body, _UNSUPPORTED)
    count = _integer(body, "n", 1, choices_max, 1)
    if count * len(prompts) > choices_max:
        raise Refusal(reasons.BAD_FIELD, f"A call can request at most {choices_max} answers.")
    seed = body.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise bad("seed", "an integer")
    seed = secrets.randbits(48) if seed is None else seed % 2**48
    tokens_max = default if wanted is None else _integer({maximum: wanted}, maximum, 1, 1 << 31, 1)
    common: dict[str, Any] = {
        "temperature": _number(body, "temperature", 0.0, 2.0),
        "top_p": _number(body, "top_p", 0.0, 1.0),
        "stop": stops_of(body.get("stop")),
        "logprobs": logprobs,
        "ignore_eos": bool(body.get("ignore_eos")),
        "name": name,
    }
    requests = []
    for prompt in prompts:
        if not prompt or len(prompt) >= model.context:
            raise Refusal(reasons.BAD_FIELD, f"The prompt has {len(prompt)} tokens; the context fits 1 to {model.context - 1}.")
        most = min(tokens_max, model.context - len(prompt))
        requests += [
            SubmittedRequest(prompt=tuple(prompt), tokens_max=most, seed=seed + choice, **common) for choice in range(count)
        ]
    options = body.get("stream_options")
    return ParsedRequest(
        requests, bool(body.get("stream")), isinstance(options, dict) and bool(options.get("include_usage")), len(prompts)
    )


def refuse_unsupported(body: dict[str, Any], fields: Sequence[str]) -> None:
    for name in fields:
        if body.get(name) and body[name] != {"type": "text"}:
            raise Refusal(reasons.BAD_FIELD, f"{name} is not supported by this engine.")


def tokens_of(prompt: Any, model: Model, field: str = "prompt") -> list[int]:
    if isinstance(prompt, str):
        return model.tokenizer.encode(prompt)
    if isinstance(prompt, list) and all(isinstance(t, int) and 0 <= t < model.vocab for t in prompt):
        return prompt
    raise bad(field, "a text, a list of this model's token ids, or a list of these")


def text_of(content: Any, kinds: Sequence[str] = ("text",)) -> str:
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) and part.get("type") in kinds else None for part in content]
        if all(isinstance(part, str) for part in parts):
            return "".join(map(str, parts))
    elif content is None or isinstance(content, str):
        return content or ""
    raise bad("content", f"a text, or a list of parts of type {' or '.join(kinds)}")


def stops_of(value: Any, name: str = "stop") -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > STOPS_MAX or not all(isinstance(s, str) for s in stops):
        raise bad(name, f"a text, or a list of up to {STOPS_MAX}")
    if any(len(stop) > STOP_CHARS_MAX for stop in stops):
        raise bad(name, f"made of texts of up to {STOP_CHARS_MAX} characters")
    return tuple(stop for stop in stops if stop)


def _integer(body: dict[str, Any], field: str, least: int, most: int, default: int) -> int:
    value = body.get(field)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise bad(field, f"a whole number from {least} to {most}")
    return value


def _number(body: dict[str, Any], field: str, least: float, most: float) -> float:
    value = body.get(field)
    if value is None:
        return 1.0
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise bad(field, f"a number from {least:g} to {most:g}")
    return float(value)


def bad(field: str, takes: str) -> Refusal:
    return Refusal(reasons.BAD_FIELD, f"{field} must be {takes}.")
