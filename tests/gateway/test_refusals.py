"""An engine without room answers 429, 529, or 503 with Retry-After, and the client must not notice.

This holds as long as another backend, or the same one a little later, accepts the call.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from hangup.gateway.backends.rate_limits import come_back_s, is_refusal, spent_s
from support.processes import Gateway, StandIn, gateway_and_engine, get_json
from support.raw import Client

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "ignore_eos": True, "stream": True}
FULL: dict[str, Any] = {"queue": 0, "full_status": 429, "prefill_s": 0.05, "token_s": 0.02}


async def burst(gateway: Gateway, count: int) -> list[bytes]:
    """Make this many calls at once, and return the status line of each."""

    async def one() -> bytes:
        reader, writer = await asyncio.open_connection(*gateway.address)
        body = json.dumps(BODY).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        return answer[:12] if b"[DONE]" in answer or not answer.startswith(b"HTTP/1.1 200") else b"truncated"

    return await asyncio.gather(*(one() for _ in range(count)))


@pytest.mark.parametrize("retry_after_s", [0.0, 0.2])
def test_no_client_sees_the_refusals_of_an_engine_that_allows_ten_at_a_time(retry_after_s: float) -> None:
    with gateway_and_engine({}, slots=10, retry_after_s=retry_after_s, like="openai", **FULL) as (gateway, engine):
        assert asyncio.run(burst(gateway, 40)) == [b"HTTP/1.1 200"] * 40
        stats = engine.stats()
        assert stats["finished"] == 40 and stats["running_peak"] == 10


def test_what_one_backend_refuses_the_other_takes() -> None:
    with (
        StandIn(slots=1, like="openai", **FULL) as small,
        StandIn(slots=100, like="openai", **FULL) as large,
        Gateway(small.url, large.url) as gateway,
    ):
        assert asyncio.run(burst(gateway, 40)) == [b"HTTP/1.1 200"] * 40
        assert large.stats()["finished"] >= 30


def test_a_long_pause_is_told_at_once_and_not_waited_for() -> None:
    with (
        gateway_and_engine({}, slots=1, retry_after_s=45.0, like="openai", **FULL) as (gateway, _),
        Client(gateway.address) as runs,
        Client(gateway.address) as refused,
        Client(gateway.address) as next_one,
    ):
        runs.chat(stream=True, max_tokens=500, ignore_eos=True)
        runs.read_until(b'"content":" ')
        refused.chat()
        answer = refused.read_answer()
        assert answer.status == 429 and answer.headers["retry-after"] == "45"
        [row] = get_json(f"{gateway.admin_url}/api/backends")["backends"]
        assert row["limited_by"] == "engine_refused" and row["paused_s"] > 40
        next_one.chat()  # nobody else is made to wait for what will not come
        answer = next_one.read_answer()
        assert answer.status == 503 and answer.headers["x-hangup-reason"] == "backend_paused"
        assert 30 <= int(answer.headers["retry-after"]) <= 70


def test_which_answers_are_refusals() -> None:
    assert is_refusal(429, {}) and is_refusal(529, {}) and is_refusal(503, {b"retry-after": b"3"})
    assert not is_refusal(503, {}) and not is_refusal(500, {b"retry-after": b"3"}) and not is_refusal(200, {})


ANTHROPIC = b"anthropic-ratelimit-requests-"
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, None),
        ({b"retry-after": b"7"}, 7.0),
        ({b"retry-after-ms": b"1500", b"retry-after": b"2"}, 1.5),
        ({b"retry-after": b"Sun, 15 Nov 2026 12:00:30 GMT"}, 30.0),
        ({b"retry-after": b"soon"}, None),
        ({b"retry-after": b"-4"}, None),
        ({b"retry-after": b"inf"}, None),
        ({b"x-ratelimit-remaining-requests": b"0", b"x-ratelimit-reset-requests": b"1m2.5s"}, 62.5),
        ({b"x-ratelimit-remaining-requests": b"3", b"x-ratelimit-reset-requests": b"1m2.5s"}, None),
        ({b"x-ratelimit-remaining-tokens": b"0", b"x-ratelimit-reset-tokens": b"120ms"}, 0.12),
        (
            {b"anthropic-ratelimit-requests-remaining": b"0", b"anthropic-ratelimit-requests-reset": b"2026-11-15T12:00:09Z"},
            9.0,
        ),
        ({b"anthropic-ratelimit-requests-remaining": b"0", b"anthropic-ratelimit-requests-reset": b"later"}, None),
    ],
)
def test_when_to_come_back(fields: dict[bytes, bytes], seconds: float | None) -> None:
    assert come_back_s(fields, lambda: NOW) == seconds
    if b"retry-after" not in fields:
        assert spent_s(fields, lambda: NOW) == seconds
