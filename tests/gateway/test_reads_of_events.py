"""Reads of whole chunks and whole events are taken by shorter ways; what comes of them must be the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hangup.config import LimitSettings
from hangup.core.reasons import Reason
from hangup.gateway.apis.base import EventFacts, Json
from hangup.gateway.apis.openai_chat import OpenAIChat
from hangup.gateway.http.body import Chunked
from hangup.gateway.http.head import ResponseHead
from hangup.gateway.http.sse import SSE, Splitter, events_in_chunks
from hangup.gateway.relay import assemble
from hangup.gateway.relay.assemble import AssembleRelay
from hangup.gateway.relay.events import look
from support.raw_engine import DONE, LAST, chunk
from support.relay_sides import Side, chat, sse

HEAD = ResponseHead(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
PIECES = [
    b"data: x\n\n",
    b"data: \n\n",
    b": ping\n\n",
    b"data: x\r\n\n",
    b"a\rb\n\n",
    b"\n\n",
    b"x",
    b"data: x\n\ndata: y\n\n",
    b"\r\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.sampled_from([b"", LAST, b"5\r\nab", b"\r\n", b"0\r\n"]))
@settings(max_examples=300, deadline=None)
@example([b"data: x\r\n\n"], b"")  # the line end of SSE may be CRLF
def test_events_are_found_as_by_decoding_and_splitting(pieces: list[bytes], behind: bytes) -> None:
    data = b"".join(map(chunk, pieces)) + behind
    found = events_in_chunks(data)
    if found is not None:
        decoder, splitter = Chunked(), Splitter(SSE, 1 << 20)
        assert splitter.feed(decoder.feed(data)) == found
        assert decoder.between_chunks and splitter.between_events and not decoder.done
    elif pieces and not behind:
        assert any(piece not in PIECES[:3] for piece in pieces), "the usual case is not found"


WORDS = ["a", " the", '"', "\\", "\\\\", "é", "\u2028", "[DONE]", "\n\n", "x" * 300]
DELTAS: list[Json] = [
    *({"content": word} for word in WORDS),
    {},
    {"role": "assistant", "content": ""},
    {"content": None},
    {"reasoning_content": "hm"},
    {"content": "b", "refusal": None},
]
EVENTS = [
    *(chat(delta) for delta in DELTAS),
    *(chat({"content": text}, "stop") for text in ("", "last")),
    chat({"content": "a"}, logprobs={"content": []}),
    sse({"id": "c", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}),
    sse({"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}}]}),
    sse({"error": {"message": "no"}}),
    sse({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}),
    b": ping\n\n",
    b"event: x\ndata: null\n\n",
    b"data: {\n\n",
    b"data: 7\n\n",
    DONE,
]


class _Ended(Side):
    """Ends the call itself, as a call's flow does: nothing that comes later in the same read may count."""

    def end(self, reason: Reason, detail: str = "") -> None:
        super().end(reason, detail)
        self.call.end(reason, 1.0, detail)


def outcome(reads: Iterator[bytes], tokens_max: int, **changed: Any) -> tuple[object, ...]:
    """Return what an assembled answer comes to, from these reads."""
    api, limits = OpenAIChat(), LimitSettings(output_tokens_default=tokens_max, output_tokens_max=tokens_max)
    asked = api.read("/v1/chat/completions", {"messages": []}, limits, True)
    assert asked.assembler is not None
    side = _Ended()
    relay = AssembleRelay(side, Chunked(), api, asked, asked.assembler, HEAD)
    for name, value in changed.items():
        setattr(relay, name, value)
    for read in reads:
        if side.reason is None:
            relay.feed(read)
    relay.settle()
    call = side.call
    return side.answer, side.reason and side.reason.code, call.tokens_out, call.tokens_in, call.first_token_at is not None


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_an_answer_is_the_same_however_it_is_read(data: st.DataObject) -> None:
    texts = st.sampled_from([chat({"content": word}) for word in WORDS])
    events = data.draw(st.lists(st.one_of(texts, texts, texts, st.sampled_from(EVENTS)), max_size=50))
    wire = b"".join(map(chunk, [*events, chat({}, "stop"), DONE])) + LAST
    tokens_max = data.draw(st.sampled_from([1, 3, 40, 1000]))
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=8))
    edges = [0, *sorted(cuts), len(wire)]
    slowly = outcome((wire[at : at + 1] for at in range(len(wire))), tokens_max, _together_bytes_max=0)
    assert outcome((wire[a:b] for a, b in pairwise(edges)), tokens_max) == slowly
    assert outcome(iter([*map(chunk, [*events, chat({}, "stop"), DONE]), LAST]), tokens_max) == slowly
    assert outcome(iter([wire]), tokens_max) == slowly


def test_a_whole_answer_in_one_read_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("decoded and split")

    monkeypatch.setattr(AssembleRelay, "take", never)
    words = [chat({"content": word}) for word in ("a", "b", "c")]
    wire = b"".join(map(chunk, [chat({"role": "assistant", "content": ""}), *words, chat({}, "stop"), DONE])) + LAST
    answer, reason, tokens, *_ = outcome(iter([wire]), 1000)
    assert isinstance(answer, dict) and answer["choices"][0]["message"] == {"role": "assistant", "content": "abc"}
    assert (reason, tokens) == ("completed", 3)
    assert assemble._TOGETHER_MAX > 3


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "a", "stop", "abort", "error"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["content", "role", "index", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
CHOICE = st.dictionaries(st.sampled_from(["index", "delta", "finish_reason", "logprobs", "text", "x"]), VALUES, max_size=4)
EVENT = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(CHOICE | VALUES, max_size=2) | VALUES, "error": VALUES, "usage": VALUES}
)


class _Asked(OpenAIChat):
    """Is asked one question after the other."""

    def look(self, event: Json) -> EventFacts:
        raise KeyError("odd")


@given(event=EVENT)
@settings(max_examples=500, deadline=None)
@example(event={"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "abort"}]})
@example(event={"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}]})
@example(event={"choices": [{"delta": {"content": "a", "role": None}}]})
@example(event={"error": "no", "choices": [{"delta": {"content": "a"}}]})
@example(event={"choices": [], "usage": {"completion_tokens": 1}})
def test_one_look_says_what_the_questions_say_one_by_one(event: Json) -> None:
    before = orjson.dumps(event)
    found, asked = look(OpenAIChat(), event), look(_Asked(), event)
    assert found._replace(ended=list(found.ended)) == asked._replace(ended=list(asked.ended))
    assert orjson.dumps(event) == before, "looking changes nothing"


def test_an_invalid_event_in_a_read_of_several_ends_the_call() -> None:
    wire = b"".join(map(chunk, [chat({"content": "a"}), chat({"content": "b"}), b"data: {\n\n"]))
    assert outcome(iter([wire]), 1000)[1] == "engine_invalid_answer"
