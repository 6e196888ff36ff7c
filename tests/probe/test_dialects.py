"""Bytes and formats: HTTP answers cut anywhere, URLs, engines' pages, and the events of each API."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.errors import WireError
from hangup.gateway.backends.adapters import ADAPTERS
from hangup.probe import metrics_page
from hangup.probe.cases import CASES, choose
from hangup.probe.dialects import DIALECTS, Wish, error_of, event_of
from hangup.probe.endpoint import ProbeError, is_near, parse, parse_page
from hangup.probe.figures import SOURCES, TokenMeter, read_loads, read_metrics, read_slots, sources
from hangup.probe.wire import AnswerParser, LineSplitter

bodies = st.binary(max_size=200)


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x;x=1\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: a\r\n\r\n"


@given(
    body=bodies, size=st.integers(1, 50), cuts=st.lists(st.integers(1, 40)), framing=st.sampled_from("chunked length".split())
)
def test_an_answer_cut_anywhere_is_the_same_answer(body: bytes, size: int, cuts: list[int], framing: str) -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nServer: x\r\n"
    whole = head + (
        b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, size)
        if framing == "chunked"
        else b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    data, parser, got = whole + b"next", AnswerParser(), b""
    for cut in cuts:
        got += parser.feed(data[:cut])
        data = data[cut:]
    got += parser.feed(data)
    assert (parser.status, got, parser.done, parser.rest) == (200, body, True, b"next")


@given(st.binary(max_size=100))
def test_any_bytes_are_an_answer_or_no_http(data: bytes) -> None:
    parser = AnswerParser()
    try:
        parser.feed(data)
    except WireError:
        return
    assert parser.status or b"\r\n\r\n" not in data or data.startswith(b"HTTP/1.")


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    parser = AnswerParser()
    assert parser.feed(b"HTTP/1.0 200 OK\r\n\r\nab") == b"ab" and not parser.done
    assert parser.close() and not parser.keeps_alive
    cut = AnswerParser()
    cut.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
    assert not cut.close(), "what was cut is not complete"


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line and b"\r" not in line)), st.integers(1, 9))
def test_lines_are_found_however_they_are_cut(lines: list[bytes], size: int) -> None:
    splitter, data, found = LineSplitter(), b"".join(line + b"\r\n" for line in lines) + b"rest", list[bytes]()
    for at in range(0, len(data), size):
        found += splitter.feed(data[at : at + size])
    assert found == lines and splitter.end() == b"rest"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("https://api.example.com/v1/", "https://api.example.com"),
        ("https://api.example.com/llm/v1/chat/completions", "https://api.example.com/llm"),
        ("http://[::1]:80/", "http://[::1]"),
    ],
)
def test_urls(url: str, expected: str) -> None:
    assert parse(url).url == expected


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://a:b@c", "http://x:99999", "http://x:0", "http://a b", "http://[x"]
)
def test_bad_urls_get_one_clear_line(url: str) -> None:
    with pytest.raises(ProbeError) as caught:
        parse(url)
    assert len(caught.value.problems) == 1 and "\n" not in caught.value.problems[0]


def test_whose_an_endpoint_is() -> None:
    provider = parse("https://api.openai.com/v1").provider
    assert provider is not None and provider.title == "OpenAI"
    assert parse("https://openrouter.ai/api/v1").provider is not None
    assert parse("https://notopenai.com").provider is None and parse("http://127.0.0.1").provider is None
    assert all(map(is_near, ["127.0.0.1", "10.1.2.3", "192.168.0.9", "::1", "fe80::1%eth0", "::ffff:10.0.0.1"]))
    assert not any(map(is_near, ["8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8"]))
    assert parse_page("http://gpu:8000")[1] == "" and parse_page("gpu:8000/metrics")[1] == "/metrics"


EVENTS = {
    "openai": b'data: {"choices":[{"delta":{"content":"a"}}]}',
    "openai-completions": b'data: {"choices":[{"text":"a"}]}',
    "anthropic": b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}',
    "ollama": b'{"response":"a","done":false}',
    "llamacpp": b'data: {"content":"a","stop":false}',
    "tgi": b'data: {"token":{"text":"a"}}',
    "openai-responses": b'data: {"type":"response.output_text.delta","delta":"a"}',
}


@pytest.mark.parametrize("name", DIALECTS)
def test_each_api_asks_and_reads(name: str) -> None:
    dialect = DIALECTS[name]
    event = event_of(EVENTS[name])
    assert event is not None and dialect.text(event) == "a"
    for wish in (Wish("m", "hello", 7, stream=True), Wish("", "hello", 7, stream=False, extra=False)):
        text = json.dumps(dialect.body(wish))
        assert "hello" in text and "7" in text and dialect.target(wish.stream).startswith("/")
    assert "k" in " ".join(dialect.headers("k").values())


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v))
)
def test_no_answer_is_too_odd_to_read(value: object) -> None:
    line = json.dumps(value).encode()
    assert len(error_of(line)) <= 160
    for name in ("choices", "delta", "content", "usage", "token", "response", "details"):
        event = event_of(json.dumps({name: value}).encode())
        assert event is not None
        for dialect in DIALECTS.values():
            dialect.text(event)
            dialect.tokens(event)
            dialect.is_answer(event)
    for source in SOURCES:
        source.read(line)


def test_the_figures_of_engines() -> None:
    gauges = b'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_waiting{engine="0"} 1.0\n'
    page = gauges + b"vllm:generation_tokens_total 70\n"
    status = read_metrics(page)
    assert status is not None and (status.running, status.waiting, status.tokens) == (2, 1, 70)
    loads = read_loads(b'{"loads":[{"num_running_reqs":3,"num_waiting_reqs":2},{"num_running_reqs":1}]}')
    assert loads is not None and (loads.running, loads.waiting) == (4, 2)
    assert read_metrics(b"python_info 1\n") is None and read_slots(b"[]") is None and read_loads(b"[1]") is None
    assert {source.path for source in sources("/x")} == {"/x"}


def test_the_probe_knows_the_metrics_that_the_adapters_know() -> None:
    """The probe does not import the adapters: it works where the gateway is not installed."""
    adapters = ADAPTERS.values()
    assert {name for adapter in adapters if (name := adapter.running_metric)} <= set(metrics_page.RUNNING)
    assert {name for adapter in adapters if (name := adapter.tokens_metric)} <= set(metrics_page.TOKENS)


def test_tokens_are_followed_slot_by_slot() -> None:
    meter, seen = TokenMeter(), []
    for task, decoded, busy in ((1, 3, True), (1, 9, True), (1, 9, False), (2, 4, True)):
        row = {"id": 0, "is_processing": busy, "id_task": task, "next_token": [{"n_decoded": decoded}]}
        status = read_slots(json.dumps([row]).encode())
        assert status is not None
        seen.append(meter.feed(status))
    assert seen == [3, 9, 9, 13]


def test_cases_are_chosen_by_name_or_beginning() -> None:
    assert choose("") == list(CASES.values()) and [case.name for case in choose("stream-fin")] == ["stream-fin"]
    assert {case.moment.value for case in choose("whole, upload")} == {"whole", "upload"}
    with pytest.raises(ValueError, match="there is no case 'nonsense'"):
        choose("nonsense")
