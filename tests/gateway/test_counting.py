"""hangup counts tokens, not events: the pump on its own, fed with streams cut at any byte, and the timeouts around it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.config import LimitSettings
from hangup.core.reasons import Reason
from hangup.gateway.apis.anthropic import AnthropicMessages
from hangup.gateway.apis.base import Api, Json
from hangup.gateway.apis.llamacpp import LlamaCppCompletion
from hangup.gateway.apis.ollama import OllamaChat
from hangup.gateway.apis.openai_chat import OpenAIChat
from hangup.gateway.apis.openai_completions import OpenAICompletions
from hangup.gateway.apis.sglang import SglangGenerate
from hangup.gateway.apis.tgi import TgiGenerate
from hangup.gateway.http.body import Chunked
from hangup.gateway.http.head import ResponseHead
from hangup.gateway.relay.assemble import AssembleRelay
from hangup.gateway.relay.stream import StreamRelay
from support.processes import Gateway
from support.raw import Client, ask, events
from support.raw_engine import DONE, HEAD, LAST, RawEngine, chunk, event, raw_engine
from support.relay_sides import Side, block, chat, spaced, sse

CHAT = "/v1/chat/completions"

WORDS = ["a", " the", '"', "\\", "\n\n", "é", "[DONE]", '{"content":"x"}', "x" * 300]
NOISE = [b": ping\n\n", b":\n\n", b"data: {}\n\n", b"\n\n"]
# Per API: its path and request, an event with a token, events without any, and the end.
Kind = tuple[Api, str, Json, list[Callable[[str], bytes]], list[bytes], list[bytes]]
KINDS: dict[str, Kind] = {
    "chat": (
        OpenAIChat(),
        CHAT,
        {"messages": []},
        [
            lambda text: chat({"content": text}),
            lambda text: chat({"content": text}, logprobs={"content": [{"token": text, "logprob": 0.0}]}),
            lambda text: chat({"reasoning_content": text}),
            lambda text: chat({"content": "", "reasoning_content": text}),
            lambda text: chat({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}),
            lambda text: spaced(chat({"content": text})),
        ],
        [*NOISE, chat({}), chat({"content": ""}), chat({"role": "assistant", "content": ""}), chat({"content": None})],
        [chat({}, "stop"), DONE],
    ),
    "completions": (
        OpenAICompletions(),
        "/v1/completions",
        {"prompt": "x"},
        [lambda text: sse({"id": "c", "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}]})],
        [*NOISE, sse({"id": "c", "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": None}]})],
        [sse({"id": "c", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}), DONE],
    ),
    "messages": (
        AnthropicMessages(),
        "/v1/messages",
        {"messages": []},
        [
            lambda text: block("text_delta", "text", text),
            lambda text: block("thinking_delta", "thinking", text),
            lambda text: block("input_json_delta", "partial_json", text),
        ],
        [*NOISE, sse({"type": "ping"}, "ping"), block("text_delta", "text", ""), block("input_json_delta", "partial_json", "")],
        [sse({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}), sse({"type": "message_stop"}, "message_stop")],
    ),
    "llama.cpp": (
        LlamaCppCompletion(),
        "/completion",
        {"prompt": "x"},
        [lambda text: sse({"index": 0, "content": text, "tokens": [], "stop": False, "id_slot": -1})],
        [*NOISE, sse({"index": 0, "content": "", "tokens": [], "stop": False, "id_slot": -1})],
        [sse({"index": 0, "content": "", "tokens": [], "stop": True})],
    ),
    "tgi": (
        TgiGenerate(),
        "/generate_stream",
        {"inputs": "x"},
        [
            lambda text: sse({"index": 1, "token": {"id": 1, "text": text}, "generated_text": None, "details": None}),
            lambda text: sse({"token": {"id": 1, "text": text}, "top_tokens": [{"text": text}] * 2, "generated_text": None}),
        ],
        NOISE,
        [sse({"index": 2, "token": {"id": 2, "text": "</s>", "special": True}, "generated_text": "ab", "details": None})],
    ),
    "ollama": (
        OllamaChat(),
        "/api/chat",
        {"messages": []},
        [
            lambda text: json.dumps({"message": {"role": "assistant", "content": text}, "done": False}).encode() + b"\n",
            lambda text: json.dumps({"message": {"content": "", "thinking": text}, "done": False}).encode() + b"\n",
        ],
        [b'{"message":{"role":"assistant","content":""},"done":false}\n'],
        [b'{"message":{"role":"assistant","content":""},"done":true,"done_reason":"stop"}\n'],
    ),
}
LAST_HAS_TOKEN = ("tgi",)


@st.composite
def streams(draw: st.DrawFn, name: str) -> tuple[list[bytes], int, list[bytes]]:
    """Draw a stream's events, the tokens in them, and its bytes as they are read: chunks and reads end anywhere."""
    _, _, _, tokens, noise, end = KINDS[name]
    token = st.builds(lambda make, text: (make(text), 1), st.sampled_from(tokens), st.sampled_from(WORDS))
    drawn = draw(st.lists(token | st.sampled_from(noise).map(lambda e: (e, 0)), max_size=30))
    events = [event for event, _ in drawn] + end
    count = sum(n for _, n in drawn) + (name in LAST_HAS_TOKEN)
    chunks = [chunk(event) for event in events]
    if draw(st.booleans()):
        text = b"".join(events)
        borders = sorted(draw(st.sets(st.integers(1, len(text) - 1), max_size=10)))
        chunks = [chunk(text[a:b]) for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]
    if draw(st.booleans()):
        return events, count, [*chunks, LAST]
    wire = b"".join(chunks) + LAST
    borders = sorted(draw(st.sets(st.integers(1, len(wire) - 1), max_size=10)))
    return events, count, [wire[a:b] for a, b in zip([0, *borders], [*borders, len(wire)], strict=True)]


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_the_pump_counts_tokens_and_changes_nothing(name: str, data: st.DataObject) -> None:
    events, tokens, reads = data.draw(streams(name))
    api, path, body, *_ = KINDS[name]
    # The cap is what there is: one event that is taken for a token and is none, and a good stream is cut.
    limits = LimitSettings(output_tokens_default=max(tokens, 1), output_tokens_max=max(tokens, 1))
    ask = api.read(path, {**body, "stream": True}, limits, True)
    side = Side()
    relay = StreamRelay(side, Chunked(), api, ask)
    for read in reads:
        relay.feed(read)
    assert bytes(side.received) == b"".join(events)
    assert side.call.tokens_out == tokens
    assert side.reason is not None and side.reason.code == "completed"


def test_the_client_gets_the_first_token_before_anything_else_is_made_of_it() -> None:
    seen: list[tuple[bool, int]] = []

    class Watched(Side):
        def first_token(self) -> None:
            seen.append((b"first" in self.received, self.call.tokens_out))

    api, side = OpenAIChat(), Watched()
    relay = StreamRelay(side, Chunked(), api, api.read(CHAT, {"messages": [], "stream": True}, LimitSettings(), True))
    for text in ("", "first", " and more"):
        relay.feed(chunk(chat({"content": text})))
    assert seen == [(True, 1)]


@pytest.mark.parametrize("name", [name for name in KINDS if name not in LAST_HAS_TOKEN])
@given(data=st.data())
def test_the_pump_ends_at_the_cap(name: str, data: st.DataObject) -> None:
    """No token too many or too few, and no byte twice; only an event that the client has partly received may pass."""
    events, tokens, reads = data.draw(streams(name).filter(lambda drawn: drawn[1] >= 2))
    api, path, body, *_ = KINDS[name]
    most = data.draw(st.integers(1, tokens - 1))
    ask = api.read(path, {**body, "stream": True}, LimitSettings(output_tokens_default=most, output_tokens_max=most), True)
    side = Side()
    relay = StreamRelay(side, Chunked(), api, ask)
    for read in reads:
        if side.reason is None:
            relay.feed(read)
    assert side.reason is not None and side.reason.code == "output_tokens_max"
    passed, whole = bytes(side.received), b"".join(events)
    assert side.call.tokens_out in (most, most + 1)
    same = next((i for i, (a, b) in enumerate(zip(passed, whole, strict=False)) if a != b), min(len(passed), len(whole)))
    borders = [len(b"".join(events[:n])) for n in range(len(events) + 1)]
    closing = passed[max(border for border in borders if border <= same) :]
    assert closing.endswith(api.format.end)
    for piece in closing.split(api.format.end)[:-1]:
        given = api.format.data(piece)
        assert given == b"[DONE]" or isinstance(json.loads(given or b""), dict), "what is added is whole events"


def choice(index: int, text: str = "", finish: str | None = None) -> Json:
    return {"index": index, "delta": {"content": text} if text else {}, "finish_reason": finish}


@given(data=st.data())
def test_several_choices(data: st.DataObject) -> None:
    """Choices end at different times and may share an event; the pump knows when the last one has ended."""
    count = data.draw(st.integers(2, 4))
    some = st.sets(st.integers(0, count - 1), min_size=1)
    rounds = data.draw(st.lists(some, max_size=20))
    ends = data.draw(st.permutations(range(count)))
    missing = data.draw(st.booleans())
    events: list[list[Json]] = []
    open_choices, tokens = set(range(count)), 0
    for number, drawn in enumerate(rounds):
        if number % 3 == 2 and len(open_choices) > 1:
            gone = next(index for index in ends if index in open_choices)
            open_choices.discard(gone)
            events.append([choice(gone, finish="stop")])
        speaking = sorted(drawn & open_choices)
        tokens += len(speaking)
        spoken = [choice(index, "a") for index in speaking]
        events += [spoken] if data.draw(st.booleans()) else [[each] for each in spoken]
    last = sorted(open_choices)[1 if missing else 0 :]
    events += [[choice(index, finish="stop")] for index in last]
    wire = [sse({"id": "c", "choices": choices}) for choices in events if choices]
    api = OpenAIChat()
    ask = api.read(CHAT, {"messages": [], "stream": True, "n": count}, LimitSettings(), True)
    side = Side()
    relay = StreamRelay(side, Chunked(), api, ask)
    joined = data.draw(st.integers(1, 4))
    for at in range(0, len(wire), joined):
        relay.feed(b"".join(chunk(event) for event in wire[at : at + joined]))
    relay.feed(LAST)
    assert bytes(side.received) == b"".join(wire)
    assert side.call.tokens_out == tokens
    assert side.reason is not None and side.reason.code == ("engine_truncated" if missing else "completed")


@pytest.mark.parametrize("missing", [0, 1])
def test_several_prompts_of_llamacpp(missing: int) -> None:
    """Its streams have no [DONE]: each answer has its own end."""
    api = LlamaCppCompletion()
    ask = api.read("/completion", {"prompt": [[1], [2]], "stream": True}, LimitSettings(), True)
    side = Side()
    relay = StreamRelay(side, Chunked(), api, ask)
    for stop in (False, True):
        for index in range(2 - missing * stop):
            relay.feed(chunk(sse({"index": index, "content": "" if stop else "a", "stop": stop})))
    relay.feed(LAST)
    assert side.reason is not None and side.reason.code == ("engine_truncated" if missing else "completed")


def test_an_error_that_is_none() -> None:
    ask = OpenAIChat().read(CHAT, {"messages": [], "stream": True}, LimitSettings(), True)
    side = Side()
    relay = StreamRelay(side, Chunked(), OpenAIChat(), ask)
    for finish in (None, "stop"):
        relay.feed(chunk(sse({"id": "c", "error": "", "choices": [choice(0, "a", finish)]})))
    relay.feed(chunk(DONE) + LAST)
    assert side.reason is not None and side.reason.code == "completed"


class TestToldInEveryEvent:
    """Engines that put several tokens into one event, and report how many: speculation, `stream_interval`."""

    def run(self, api: Api, path: str, body: Json, reads: list[bytes]) -> Side:
        ask = api.read(path, {**body, "stream": True}, LimitSettings(), True)
        side = Side()
        relay = StreamRelay(side, Chunked(), api, ask)
        for read in reads:
            if side.reason is None:
                relay.feed(chunk(read))
        return side

    def chat(self, n: int) -> bytes:
        choice = {"index": 0, "delta": {"content": "four words of it"}, "finish_reason": None}
        return sse({"id": "c", "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 4 * n}})

    @pytest.mark.parametrize(("most", "tokens"), [(10, 8), (8, 8), (3, 0)])
    def test_chat(self, most: int, tokens: int) -> None:
        """vLLM does this with `continuous_usage_stats`."""
        side = self.run(OpenAIChat(), CHAT, {"messages": [], "max_tokens": most}, [self.chat(n) for n in range(1, 6)])
        assert side.reason is not None and side.reason.code == "output_tokens_max"
        assert side.call.tokens_out == tokens

    def test_sglang(self) -> None:
        def row(n: int) -> bytes:
            meta = {"prompt_tokens": 3, "completion_tokens": 4 * n, "finish_reason": None}
            return sse({"text": "word " * 4 * n, "meta_info": meta})

        body = {"text": "x", "sampling_params": {"max_new_tokens": 9}}
        side = self.run(SglangGenerate(), "/generate", body, [row(n) for n in range(1, 6)])
        assert (side.reason and side.reason.code, side.call.tokens_out) == ("output_tokens_max", 8)
        last = events(bytes(side.received).removesuffix(DONE))[-1]
        assert (last["text"], last["meta_info"]["finish_reason"]["type"]) == ("word " * 8, "length")

    def test_a_count_at_the_end_cuts_nothing(self) -> None:
        """The usage includes hidden reasoning, which no event contains."""
        end = sse({"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 500}})
        reads = [chat({"content": "a"}), chat({}, "stop"), end, DONE]
        side = self.run(OpenAIChat(), CHAT, {"messages": [], "max_tokens": 10}, reads)
        assert side.reason is None
        assert bytes(side.received) == b"".join(reads)


@given(data=st.data())
def test_an_answer_has_all_that_its_events_had(data: st.DataObject) -> None:
    """Texts, logprobs and token ids, also of equal tokens in a row."""
    texts = data.draw(st.lists(st.sampled_from(["ha", "ha", "é", '"', ""]), min_size=1, max_size=30))
    kind = data.draw(st.sampled_from(["plain", "logprobs", "token_ids"]))
    kinds: dict[str, Callable[[str], Json]] = {
        "plain": lambda text: {},
        "logprobs": lambda text: {"logprobs": {"content": [{"token": text, "logprob": 0.0}]}},
        "token_ids": lambda text: {"token_ids": [7]},
    }
    more = kinds[kind]
    api = OpenAIChat()
    ask = api.read(CHAT, {"messages": []}, LimitSettings(), True)
    assert ask.assembler is not None
    side = Side()
    relay = AssembleRelay(side, Chunked(), api, ask, ask.assembler, ResponseHead(b"HTTP/1.1 200 OK\r\n\r\n"))
    stream = b"".join(chat({"content": text}, **more(text)) for text in texts) + chat({}, "stop") + DONE
    borders = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=5)))
    for a, b in zip([0, *borders], [*borders, len(stream)], strict=True):
        relay.feed(chunk(stream[a:b]))
    relay.feed(LAST)
    choice = side.answer["choices"][0]
    assert choice["message"]["content"] == "".join(texts)
    assert side.call.tokens_out == sum(1 for text in texts if text)
    if kind == "logprobs":
        assert [row["token"] for row in choice["logprobs"]["content"]] == texts
    if kind == "token_ids":
        assert choice["token_ids"] == [7] * len(texts)


@given(data=st.data())
def test_an_answer_is_the_same_however_its_stream_is_cut(data: st.DataObject) -> None:
    """Compares events that each come in a chunk and a read of their own, as engines send them, with the same bytes cut
    anywhere."""
    texts = data.draw(st.lists(st.sampled_from(["ha", " b", "é", '"', "", "\\", "\n\n", "x" * 50]), min_size=1, max_size=20))
    odd = data.draw(st.lists(st.sampled_from([b": ping\n\n", chat({"role": "assistant"}), b"\n\n"]), max_size=3))
    pieces = [chat({"content": text}) for text in texts]
    for piece in odd:
        pieces.insert(data.draw(st.integers(0, len(pieces))), piece)
    reads = [chunk(piece) for piece in [*pieces, chat({}, "stop"), DONE]] + [LAST]
    stream, most = b"".join(reads), data.draw(st.sampled_from([1000, 1000, 3]))
    borders = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=8)))
    cut = [stream[a:b] for a, b in zip([0, *borders], [*borders, len(stream)], strict=True)]
    mixed = [read[a:b] for read in reads for a, b in ((0, 5), (5, None))] if data.draw(st.booleans()) else cut
    outcomes = [_assembled(way, most) for way in (reads, cut, mixed, [stream])]
    assert all(outcome == outcomes[0] for outcome in outcomes)


def _assembled(reads: list[bytes], most: int) -> tuple[Json, int, Reason | None]:
    api, side = OpenAIChat(), Side()
    ask = api.read(CHAT, {"messages": [], "max_tokens": most}, LimitSettings(), True)
    assert ask.assembler is not None
    relay = AssembleRelay(side, Chunked(), api, ask, ask.assembler, ResponseHead(b"HTTP/1.1 200 OK\r\n\r\n"))
    for read in reads:
        if side.reason is None:
            relay.feed(read)
    return side.answer, side.call.tokens_out, side.reason


def test_most_events_are_assembled_without_being_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    feed = Chunked.feed

    def counted(self: Chunked, data: bytes) -> bytes:
        decoded.append(data)
        return feed(self, data)

    monkeypatch.setattr(Chunked, "feed", counted)
    reads = [chunk(chat({"content": f"word {n}"})) for n in range(100)]
    answer, tokens, _ = _assembled([*reads, chunk(chat({}, "stop")), chunk(DONE), LAST], 1000)
    assert answer["choices"][0]["message"]["content"] == "".join(f"word {n}" for n in range(100))
    assert tokens == 100 and len(decoded) <= 4


Script = Callable[[socket.socket], None]


def sends(*pieces: bytes) -> Script:
    return lambda sock: sock.sendall(HEAD + b"".join(chunk(piece) for piece in pieces) + LAST)


def repeats(first: bytes, again: bytes) -> Script:
    """Play a dead engine behind a live HTTP server: it sends the same event over and over."""

    def script(sock: socket.socket) -> None:
        sock.sendall(HEAD + (chunk(first) if first else b""))
        for _ in range(200):
            sock.sendall(chunk(again))
            time.sleep(0.05)

    return script


TWO_CHOICES = [
    sse({"id": "c", "choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": None}]}) for index in (0, 1)
]
ONE_ENDS = sse({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
START = sse({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3, "output_tokens": 1}}})
SCRIPTS: dict[str, Script] = {
    "comment": repeats(event("a"), b": ping\n\n"),
    "empty delta": repeats(event("a"), chat({})),
    "empty text": repeats(event("a"), chat({"content": ""})),
    "role": repeats(event("a"), chat({"role": "assistant", "content": ""})),
    "nothing": repeats(event("a"), b"data: {}\n\n"),
    "blank": repeats(event("a"), b"\n\n"),
    "comment first": repeats(b"", b": ping\n\n"),
    "role first": repeats(b"", chat({"role": "assistant"})),
    "nothing first": repeats(b"", b"data: {}\n\n"),
    "ping": repeats(START + block("text_delta", "text", "a"), sse({"type": "ping"}, "ping")),
    "ping first": repeats(START, sse({"type": "ping"}, "ping")),
    "empty text block": repeats(START + block("text_delta", "text", "a"), block("text_delta", "text", "")),
    "done in the text": sends(event("the end is [DONE]")),
    "one of two": sends(*TWO_CHOICES, ONE_ENDS),
    "two": sends(*TWO_CHOICES, ONE_ENDS, *([TWO_CHOICES[1]] * 9), DONE),
    "cancelled": sends(event("a"), event("", '"cancelled"'), DONE),
    "aborted": sends(event("a"), event("b"), event("", '"abort"'), DONE),
    "error": sends(event("a"), sse({"error": {"message": "out of memory", "code": 500}}), DONE),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[RawEngine]:
    with raw_engine(lambda sock, request: SCRIPTS[json.loads(request.partition(b"\r\n\r\n")[2])["model"]](sock)) as found:
        yield found


@pytest.fixture(scope="module")
def gateway(engine: RawEngine) -> Iterator[Gateway]:
    config = f"""
        [limits]
        first_token_s = 1.5
        gap_s = 0.8
        total_s = 30
        failures_max = 1000
        [[backend]]
        url = "{engine.url}"
        slots = 100
    """
    with Gateway(config=config) as process:
        yield process
        assert not any("Traceback" in line for line in process.stderr_lines), process.stderr_lines


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", [name for name in SCRIPTS if SCRIPTS[name].__qualname__.startswith("repeats")])
def test_what_is_no_token_keeps_no_call_alive(gateway: Gateway, name: str, stream: bool) -> None:
    path = "/v1/messages" if "ping" in name or "block" in name else CHAT
    with Client(gateway.address) as client:
        client.post(path, {"model": name, "messages": [], "max_tokens": 50, "stream": stream})
        got = client.read_answer()
    row = gateway.call_log(got.headers["x-request-id"])
    assert row["cause"] == ("first_token_s" if "first" in name else "gap_s")
    assert row["tokens_out"] == (0 if "first" in name else 1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ["done in the text", "one of two"])
def test_a_stream_that_merely_stops_is_truncated(gateway: Gateway, name: str, stream: bool) -> None:
    with Client(gateway.address) as client:
        client.post(CHAT, {"model": name, "messages": [], "stream": stream, "n": 2 if "two" in name else 1})
        got = client.read_answer()
    assert gateway.call_log(got.headers["x-request-id"])["cause"] == "engine_truncated"
    if stream:
        assert not got.complete
    else:
        assert got.status == 502


def test_a_choice_that_had_ended_is_not_ended_again(gateway: Gateway) -> None:
    got = ask(gateway.address, CHAT, {"model": "two", "messages": [], "stream": True, "n": 2, "max_tokens": 2})
    ends = [(c["index"], c["finish_reason"]) for e in events(got.body) for c in e["choices"] if c["finish_reason"]]
    assert ends == [(0, "stop"), (1, "length")]
    assert gateway.call_log(got.headers["x-request-id"])["outcome"] == "cap"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("name", "tokens"), [("cancelled", 1), ("aborted", 2)])
def test_an_answer_that_the_engine_cancelled_is_not_complete(gateway: Gateway, name: str, tokens: int, stream: bool) -> None:
    with Client(gateway.address) as client:
        client.post(CHAT, {"model": name, "messages": [], "stream": stream})
        got = client.read_answer()
    row = gateway.call_log(got.headers["x-request-id"])
    assert (row["outcome"], row["cause"], row["tokens_out"]) == ("engine_failed", "engine_cancelled", tokens)
    if stream:
        assert not got.complete
        assert events(got.body)[-1]["error"]["code"] == "engine_cancelled"
        assert b'finish_reason":"' not in got.body and b"[DONE]" not in got.body
    else:
        assert (got.status, got.headers["x-hangup-reason"]) == (502, "engine_cancelled")


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_within_a_stream_is_no_completion(gateway: Gateway, stream: bool) -> None:
    got = ask(gateway.address, CHAT, {"model": "error", "messages": [], "stream": stream})
    assert b"out of memory" in got.body
    row = gateway.call_log(got.headers["x-request-id"])
    assert (row["outcome"], row["cause"]) == ("engine_failed", "engine_error")
