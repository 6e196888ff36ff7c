"""At a terminal the log is text that fits, and the start says where things are; elsewhere the log is JSON."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.test_log_lines import calls
from hangup.core.call import Call
from hangup.gateway import log_events
from hangup.gateway.log import Log, call_record
from hangup.gateway.log_text import LogText
from hangup.terminal import cells, count, duration, fit, plural, wrap
from support.processes import Gateway, StandIn
from support.raw import Client
from support.terminal import Terminal

EVENTS = st.dictionaries(
    st.sampled_from(["backend", "change", "id", "live", "count", "models", "engine", "problems", "since_s"]),
    st.text(max_size=30) | st.integers() | st.none() | st.lists(st.text(max_size=5), max_size=3),
)


def plain(line: bytes) -> str:
    return re.sub(r"\x1b\[\d+m", "", line.decode())


@given(calls(), st.integers(20, 200), st.booleans())
def test_a_calls_line_fits_and_obeys_nobody(call: Call, width: int, coloured: bool) -> None:
    text = LogText(-1, coloured)
    text._width = lambda: width  # type: ignore[method-assign]
    (line,) = text.lines([json.dumps(call_record(call)).encode()])
    shown = plain(line)
    assert shown.endswith("\n") and shown.count("\n") == 1
    assert cells(shown[:-1]) <= width and (shown[:-1].isprintable())
    assert coloured or b"\x1b" not in line


@given(st.sampled_from([*log_events.EVENTS, "unheard_of"]), EVENTS, st.integers(20, 200))
def test_an_event_with_any_fields_is_a_line_that_fits(event: str, fields: dict[str, object], width: int) -> None:
    text = LogText(-1, False)
    text._width = lambda: width  # type: ignore[method-assign]
    for line in text.lines([json.dumps({"time": "now", "event": event, **fields}).encode()]):
        shown = line.decode()
        assert shown.endswith("\n") and shown[:-1].isprintable() and cells(shown[:-1]) <= width


def at_80_columns(record: dict[str, object]) -> list[str]:
    text = LogText(-1, False)
    text._width = lambda: 80  # type: ignore[method-assign]
    return [line.decode()[9:-1] for line in text.lines([json.dumps({"time": "now", **record}).encode()])]


def event(name: str, **fields: object) -> list[str]:
    return at_80_columns({"event": name, **fields})


def test_what_is_wrong_with_an_engine_is_said_in_whole_sentences() -> None:
    """Cut at the terminal's edge, the reason of a quarantine and the way of a stop were lost."""
    reason = "hu-861498aea0d27b55c1c73e6f and others still run"
    assert event("ladder_step_taken", backend="a", step="quarantined", reason=reason, id=None) == [
        "a is quarantined and gets no calls: hu-861498aea0d27b55c1c73e6f and",
        "others still run",
    ]
    stops = {"stops_by": "closing the connection; abort by id in development mode", "verified_by": "its counts (/metrics)"}
    assert " ".join(event("backend_found", backend="a", engine="vllm", version="0.11", **stops)) == (
        "a is up: vllm 0.11; calls are stopped by closing the connection; abort by id in development mode; "
        "stops are verified by its counts (/metrics)"
    )
    suspects = {"tenants": ["acme"], "calls": []}
    raised = event("divergence_alarm_changed", backend="a", state="raised", signal="exact", excess=0.5, suspects=suspects)
    assert raised[0].startswith("ALARM: a computes tokens that nobody receives") and raised[-1].endswith("that ended early")
    assert event("ladder_step_taken", backend="a", step="abort", reason="abort 1 of 3", id="hu-861498aea0d27b55") == [
        "a is told again to stop (call hu-861498ae): abort 1 of 3"
    ]
    assert event("backend_changed", backend="a", change="down: cannot connect") == ["a is down: cannot connect"]
    assert event("drain_cut_short", ended=1, forced=True) == ["ended 1 live call before completion"]
    assert len(event("models_changed", backend="a", count=100, models=["m" * 30] * 100)) == 6


def test_a_calls_line_says_in_words_why_it_ended() -> None:
    record = {
        "event": "call_ended", "id": "hu-1", "route": "openai.chat", "model": "m", "tenant": "default", "status": 504,
        "outcome": "cap", "cause": "gap_s", "detail": None, "sent_s": 0.1, "first_token_s": 0.2, "total_s": 60.0,
        "tokens_out": 3, "tokens_after_hangup": 1, "release": "verified", "backend": "a", "attempts": 1,
    }  # fmt: skip
    (line,) = at_80_columns(record)
    assert "Timed out waiting for th" in line and "gap s" not in line
    (line,) = at_80_columns(record | {"outcome": "client_gone", "cause": "fin", "detail": None})
    assert line.endswith("engine stopped, 1 token …")
    (line,) = at_80_columns(record | {"outcome": "client_gone", "cause": "fin", "tokens_after_hangup": 0})
    assert line.endswith("engine stopped  chat m  …"), "the model is news, that the client closed is not"
    (line,) = at_80_columns(record | {"route": "openai.embeddings", "outcome": "completed", "tokens_out": 0, "release": None})
    assert " tok " not in line and line.endswith("1m00s  embeddings m  a"), "nothing about tokens where there are none"


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=60), st.integers(2, 20))
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(cells(line) <= width for line in lines) and "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_numbers_for_people() -> None:
    spans = [0.004, 0.42, 3.14, 42.2, 59.9, 185, 7800, 86399, 86400 * 3 + 4 * 3600]
    assert [duration(span) for span in spans] == ["0.00s", "0.42s", "3.1s", "42s", "1m00s", "3m05s", "2h10m", "23h59m", "3d4h"]
    assert (plural(1, "call"), plural(1200, "call")) == ("1 call", "1,200 calls")
    assert (count(1234567), fit("abcdef", 4), fit("日本語", 5), fit("x", 0)) == ("1,234,567", "abc…", "日本…", "")


@pytest.mark.parametrize(("format", "text"), [("auto", False), ("json", False), ("text", True)])
def test_the_format_of_a_file(tmp_path: Path, format: str, text: bool) -> None:
    log = Log(str(tmp_path / "log"), 100, format=format)
    log.event("backend_changed", backend="b", change="down: refused")
    log.close()
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.endswith("b is down: refused") if text else json.loads(line)["change"] == "down: refused"


def test_the_first_minute_at_a_terminal(engine: StandIn) -> None:
    with Terminal("serve", "--port", "0", "--admin-port", "0", "--upstream", engine.url) as terminal:
        found = terminal.wait_for(r"clients +http://127\.0\.0\.1:(\d+)/v1")
        address = ("127.0.0.1", int(found[1]))
        terminal.wait_for(r"dashboard +http://127\.0\.0\.1:\d+\n +engine +http")
        terminal.wait_for(
            r"is up: standin; calls are stopped by abort by id,\n +closing the connection; stops are verified by its counts"
        )
        assert terminal.text.index("dashboard") < terminal.text.index("is up:"), "first where, then what happens"
        with Client(address) as client:
            client.chat(stream=True, max_tokens=4000)
            client.read_until(b"data:")
        terminal.wait_for(r"client_gone +hu-\w{8} +\d+ tok +\S+s +engine stopped")
        with Client(address) as client:
            client.chat(stream=True, max_tokens=4000)
            client.read_until(b"data:")
            os.kill(terminal.popen.pid, signal.SIGINT)
            terminal.wait_for(r"draining: 1 live call may finish within 30s; Ctrl-C again ends it\n")
            os.kill(terminal.popen.pid, signal.SIGINT)
            assert terminal.wait() == 0
        terminal.wait_for("ended 1 live call")
    assert b"\x1b[" in terminal.output and "{" not in terminal.text
    assert max(map(cells, terminal.text.splitlines())) <= 80


def test_no_colour_and_an_engine_that_is_down() -> None:
    flags = ("serve", "--port", "0", "--admin-port", "0", "--upstream", "http://127.0.0.1:9")
    with Terminal(*flags, env={"NO_COLOR": "1"}) as terminal:
        terminal.wait_for(r"127\.0\.0\.1:9 does not answer yet: cannot connect")
        assert b"\x1b[" not in terminal.output


def test_a_second_signal_is_announced_where_the_log_is_json(engine: StandIn) -> None:
    with Gateway(engine.url) as gateway, Client(gateway.address) as client:
        client.chat(stream=True, max_tokens=4000)
        client.read_until(b"data:")
        gateway.signal(signal.SIGTERM)
        gateway.find_line(r"draining: 1 live call may finish within 30 s; a second Ctrl-C or SIGTERM ends them now")
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0


def test_the_pages_for_beginners_work_as_printed() -> None:
    """With no engine at all, both SDKs get an answer from the addresses and keys that the pages show."""
    root = Path(__file__).resolve().parents[2]
    pages = [(root / name).read_text() for name in ("README.md", "docs/quickstart.md", "docs/guide-developer.md")]
    snippets = {found for page in pages for found in re.findall(r"```python\n(client = openai.*?)```", page, re.S)}
    (snippet,) = snippets
    with Gateway() as gateway:
        clients = []
        for line in snippet.splitlines():
            scope = {"openai": openai, "anthropic": anthropic}
            exec(line.replace("http://127.0.0.1:8080", gateway.url), scope)
            clients.append(scope["client"])
        first, second = clients
        assert isinstance(first, openai.OpenAI) and isinstance(second, anthropic.Anthropic)
        hello: list[Any] = [{"role": "user", "content": "Hello"}]
        with first, second:
            assert first.chat.completions.create(model="any", messages=hello, max_tokens=4).choices
            assert first.responses.create(model="any", input="Hello", max_output_tokens=16).output
            assert first.embeddings.create(model="any", input="Hello", encoding_format="float").data
            assert second.messages.create(model="any", messages=hello, max_tokens=4).content
