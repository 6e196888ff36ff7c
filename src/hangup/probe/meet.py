"""Meets an endpoint: which API it speaks, which model it has, how fast it is. What cannot be probed is a `ProbeError`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hangup.probe.caller import Caller, CallKind, connect_problem
from hangup.probe.connection import CUT, RATE_LIMIT, TOKENS_PER_EVENT_MAX, ProbeConnection
from hangup.probe.dialects import DIALECTS, Dialect, error_of, event_of
from hangup.probe.endpoint import ProbeError

ANSWER_S = 120.0  # how long the first call may take: an engine may have to load its model
_TRY_TOKENS = 2
_SPEED_TOKENS = 48
_NEWER_LIMIT = "max_completion_tokens"  # newer models of OpenAI refuse max_tokens, and name this instead
_PIECES = 6
_LISTED = 5  # models that an error names


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast an undisturbed call is."""

    first_token_s: float
    rate: float  # tokens a second of one stream
    tokens_per_event: float = 1.0

    def counting(self, tokens_per_event: float) -> Speed:
        """Return the speed in tokens as the engine counts them; figures that cannot be true are left out."""
        if not 1.0 < tokens_per_event <= TOKENS_PER_EVENT_MAX:
            return self
        return Speed(self.first_token_s, self.rate * tokens_per_event, tokens_per_event)


async def meet(caller: Caller, api: str, model: str) -> None:
    """Find out which API and model to use, with a call of two tokens for each API that has to be tried."""
    caller.dialect = DIALECTS[api or "openai"]
    try:
        status, page, _ = await caller.get("/v1/models")
    except Exception as error:
        if isinstance(error, (OSError, TimeoutError)):
            raise connect_problem(caller.endpoint, error) from None
        raise
    _check_key(caller, status, page)
    listed = _names(page) if status == 200 else []
    caller.model = model or (listed[0] if listed else "")
    refused: list[str] = []
    for dialect in [DIALECTS[api]] if api else DIALECTS.values():
        caller.dialect = dialect
        if not caller.model and dialect.name == "ollama":
            caller.model = (_names((await caller.get("/api/tags"))[1]) or [""])[0]
        problem = await _try(caller, dialect, listed)
        if not problem:
            return
        refused.append(f"{dialect.path}: {problem}")
    if not any(": HTTP " in line for line in refused):
        hint = "" if caller.endpoint.tls or not refused[0].endswith(CUT) else "; does it want https://?"
        raise ProbeError(f"{caller.endpoint.url} is no LLM endpoint: {refused[0]}{hint}")
    raise ProbeError(f"{caller.endpoint.url} answers none of the known APIs ({'; '.join(refused[:2])}); see --api and --model")


async def _try(caller: Caller, dialect: Dialect, listed: list[str]) -> str:
    """Return an empty string if the endpoint answers this API, otherwise what it says."""
    problem = ""
    for extra, newer in ((True, False), (False, False), (False, True)):
        if newer and _NEWER_LIMIT not in problem:
            break
        caller.extra_fields, caller.newer_limit = extra, newer
        call = await caller.start(CallKind(_TRY_TOKENS, stream=False))
        try:
            await call.until_end(ANSWER_S)
            _check_key(caller, call.status, call.body)
            answer = event_of(call.body)
            if call.done and call.status == 200 and answer is not None and dialect.is_answer(answer):
                return ""
            if call.status in (429, 503):
                raise ProbeError(f"{caller.endpoint.url} refuses calls now: {call.refused}")
            problem = call.refused or "the answer is none of this API"
            if _blames_model(call) and (caller.model or dialect.needs_model):
                raise _no_model(caller, call, listed)
            if 300 <= call.status < 400:
                raise ProbeError(f"{caller.endpoint.url} redirects to {call.headers.get('location', 'nowhere')}: give that URL")
            if not call.status and not call.failure and not call.lost:
                raise ProbeError(f"{caller.endpoint.url} did not answer {dialect.path} within {ANSWER_S:g} s")
            if call.status not in (400, 422):
                return problem
        finally:
            call.close()
    return problem


def _blames_model(call: ProbeConnection) -> bool:
    said = error_of(call.body).lower()
    return call.status in (400, 404) and "model" in said and _NEWER_LIMIT not in said


def _no_model(caller: Caller, call: ProbeConnection, listed: list[str]) -> ProbeError:
    said = f"{caller.endpoint.url} does not serve the model {caller.model!r}" if caller.model else "give a model: --model NAME"
    names = f"; it lists {', '.join(listed[:_LISTED])}" if listed else ""
    return ProbeError(f"{said} ({error_of(call.body)}){names}")


def _check_key(caller: Caller, status: int, body: bytes) -> None:
    if status in (401, 403):
        hint = "the key is refused" if caller.has_key else "it needs a key: --api-key-env NAME"
        raise ProbeError(f"{caller.endpoint.url}: {hint} (HTTP {status}: {error_of(body)})")


def _names(page: bytes) -> list[str]:
    try:
        value = json.loads(page)
    except ValueError:
        return []
    rows = (value.get("data") or value.get("models")) if isinstance(value, dict) else None
    found = [row.get("id") or row.get("name") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [name for name in found if isinstance(name, str)]


async def first_token_time(caller: Caller, kind: CallKind | None = None, timeout_s: float = ANSWER_S) -> float | None:
    """Send a canary and read it to its end; return its first-token time, or None if it was not answered."""
    return (await canary(caller, kind, timeout_s))[0]


async def canary(caller: Caller, kind: CallKind | None, timeout_s: float) -> tuple[float | None, str]:
    """Send a canary and read it to its end; return its first-token time, or None and what went wrong."""
    call = await caller.start(kind or CallKind(_TRY_TOKENS))
    try:
        await call.until_end(timeout_s)
        if call.first_token_at is None or call.refused:
            silent = "the answer has no text" if call.ended else f"no first token within {timeout_s:.0f} s"
            return None, call.refused or silent
        return call.first_token_at - call.sent_at, ""
    finally:
        call.close()


async def long_first_token_time(caller: Caller) -> float | None:
    """Return the first-token time of a long prompt: of the longest one that the endpoint does not refuse."""
    while True:
        call = await caller.start(CallKind(_TRY_TOKENS, long_prompt=True))
        try:
            await call.until_end(ANSWER_S)
        finally:
            call.close()
        if not (call.may_be_too_long and caller.shorten_long_prompts()):
            return None if call.refused or call.first_token_at is None else call.first_token_at - call.sent_at


async def measure_speed(caller: Caller) -> Speed:
    """Read one stream to its end."""
    call = await caller.start(CallKind(_SPEED_TOKENS))
    try:
        await call.read_whole(ANSWER_S)
        if call.first_token_at is not None and not call.ended:
            raise ProbeError(f"{caller.endpoint.url}: an answer of {_SPEED_TOKENS} tokens stalled after {call.events}")
        if call.refused.startswith(RATE_LIMIT):
            raise ProbeError(f"{caller.endpoint.url} refuses calls now: {call.refused}")
        if call.refused or call.first_token_at is None or call.last_token_at is None:
            raise ProbeError(f"{caller.endpoint.url} answers, but not as a stream: {call.refused or 'there is no text in it'}")
        if call.events < 4:
            raise ProbeError(
                f"{caller.endpoint.url}: an answer of {_SPEED_TOKENS} tokens came in {call.events} pieces: too few to probe"
            )
        return faster(Speed(call.first_token_at - call.sent_at, 1e-3), call)
    finally:
        call.close()


def faster(speed: Speed, call: ProbeConnection) -> Speed:
    """Return the speed with the rate of this call, if that is higher.

    Events that waited for us, or for a proxy, come in one piece and say nothing about the engine's rate: those of the first
    piece are left out, and an answer of few pieces counts from its request on.
    """
    if call.first_token_at is None or call.last_token_at is None:
        return speed
    if call.reads < _PIECES:
        rate = call.events / max(call.last_token_at - call.sent_at, 1e-6)
    else:
        rate = (call.events - call.first_events) / max(call.last_token_at - call.first_token_at, 1e-6)
    return Speed(speed.first_token_s, max(speed.rate, rate), speed.tokens_per_event)
