"""The library counts tokens, not chunks; it cuts no answer without being asked, and the client and the log show each cut."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hangup
from hangup.library.formats import choose_format
from hangup.library.formats.raw import whole_events
from library.pretender import Pretender

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def delta(text: str, **more: Any) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **more}]}


async def chunks_of(*chunks: Any) -> AsyncIterator[Any]:
    for chunk in chunks:
        yield chunk


def streamed(*chunks: Any, **options: Any) -> tuple[hangup.Ended, Pretender]:
    async def main() -> tuple[hangup.Ended, Pretender]:
        client = Pretender()
        return await client.stream(chunks_of(*chunks), **options), client

    return asyncio.run(main())


def test_by_default_nothing_is_cut() -> None:
    ended, client = streamed(*[delta("a")] * 5000)
    assert (ended.outcome.value, ended.tokens_out, client.finished) == ("completed", 5000, True)
    assert len(client.sent) == 5001 and client.sent[-1] == b"data: [DONE]\n\n"


def test_a_cut_is_a_warning_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hangup")
    ended, _ = streamed(delta("a"), delta("b"), delta("c"), max_tokens=2)
    (record,) = caplog.records
    assert (ended.cause, ended.tokens_out, record.levelno) == ("output_tokens_max", 2, logging.WARNING)
    assert "hangup cut the answer" in record.message


COUNTS: list[tuple[Any, int]] = [
    (delta(""), 0),  # the role
    (delta(" the"), 1),
    (delta(" the quick brown fox"), 4),  # a provider that sends several tokens at once
    (delta("the quick", logprobs={"content": [{}, {}, {}]}), 3),
    (delta("the quick", token_ids=[1, 2, 3, 4, 5]), 5),  # vLLM's return_token_ids
    (delta("x") | {"usage": {"completion_tokens": 7}}, 7),  # vLLM's continuous_usage_stats
    ({**HEAD, "choices": [], "usage": {"completion_tokens": 9}}, 9),
    ({**HEAD, "choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}, 1),
    ({**HEAD, "choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"arguments": '{"a'}}]}}]}, 1),
    ({**HEAD, "object": "text_completion", "choices": [{"index": 0, "text": "a b"}]}, 2),
    ({"type": "ping"}, 0),
    ({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a b c"}}, 3),
    ({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "x y"}}, 0),
    ({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 12}}, 12),
    ({"type": "response.output_text.delta", "delta": "a b", "item_id": "i", "output_index": 0}, 2),
    (b"data: token\n\n", 1),
    (b": keep-alive\n\n", 0),
    (b"data: [DONE]\n\n", 0),
    ("a token", 1),
    ("", 0),
    ({"text": "unknown"}, 1),
]


@pytest.mark.parametrize(("chunk", "tokens"), COUNTS, ids=lambda value: str(value)[:40])
def test_tokens_are_counted_not_chunks(chunk: Any, tokens: int) -> None:
    assert choose_format(chunk, capped=True).tokens(chunk, 0)[0] == tokens
    if isinstance(chunk, dict):
        raw = f"data: {json.dumps(chunk)}\n\n"
        assert choose_format(raw, capped=True).tokens(raw, 0)[0] == tokens
        assert choose_format(raw, capped=False).tokens(raw, 0)[0] == 1


def test_several_tokens_in_a_chunk_count_towards_the_cap() -> None:
    ended, client = streamed(*[delta("one two three")] * 10, max_tokens=9)
    assert (ended.cause, ended.tokens_out) == ("output_tokens_max", 9)
    assert json.loads(client.sent[-1].split(b"\n")[0][6:])["choices"][0]["finish_reason"] == "length"


def test_unknown_events_are_cut_with_an_error_event_and_text_without_its_end() -> None:
    ended, client = streamed(*[b"data: x\n\n"] * 4, max_tokens=3)
    assert ended.tokens_out == 3 and b'"code":"output_tokens_max"' in client.sent[-1] and client.finished
    ended, client = streamed(*["word "] * 4, max_tokens=3, media_type="text/plain")
    assert (client.sent, client.finished) == ([b"word "] * 3, False), "plain text can only break off"
    ended, client = streamed(*["word "] * 4, max_tokens=3, media_type="text/plain", on_cap=lambda: "[cut]")
    assert (client.sent, client.finished) == ([b"word "] * 3 + [b"[cut]"], True)


def test_an_application_that_encodes_itself_also_ends_the_stream_itself() -> None:
    _, client = streamed(delta("a"), encode=lambda chunk: chunk["choices"][0]["delta"]["content"])
    assert client.sent == [b"a"]
    ended, _ = streamed(delta("a"), delta("b"), count=lambda _: 5, max_tokens=5)
    assert (ended.cause, ended.tokens_out) == ("output_tokens_max", 5)


def test_text_between_objects_is_sent_as_it_is_and_done_once() -> None:
    _, client = streamed(": ping\n\n", delta("a"), ": ping\n\n", delta("b"))
    assert client.sent[0] == client.sent[2] == b": ping\n\n" and client.sent[-1] == b"data: [DONE]\n\n"
    _, client = streamed(delta("a"), b"data: [DONE]\n\n")
    assert client.sent.count(b"data: [DONE]\n\n") == 1
    ended, client = streamed(": ping\n\n", delta("a"), delta("b"), max_tokens=1)
    assert b'"finish_reason":"length"' in client.sent[-1] and ended.tokens_out == 1


def test_a_limit_in_an_anthropic_stream_is_told_in_its_own_form() -> None:
    async def pausing() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "message_start", "message": {}}
        await asyncio.sleep(60)

    async def main() -> Pretender:
        client = Pretender()
        await client.stream(pausing(), gap_s=0.05)
        return client

    sent = asyncio.run(main()).sent
    assert sent[0].startswith(b"event: message_start\ndata: ")
    assert sent[-1].startswith(b'event: error\ndata: {"type":"error","error":{') and b'"code":"gap_s"' in sent[-1]


@given(st.lists(st.sampled_from([b"data: a\n\n", b"data: b\r\n\r\n", b": c\n\n", b"event: d\ndata: e\n\n"])), st.integers(1, 9))
def test_a_stream_is_divided_into_its_events_however_it_arrives(events: list[bytes], size: int) -> None:
    whole = b"".join(events)

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), size):
            yield whole[at : at + size]

    async def main() -> list[bytes]:
        return [event async for event in whole_events(parts())]

    assert asyncio.run(main()) == events
