"""Every amount that a client controls has a named limit; these tests exceed each of them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import signal
import socket
import time
import urllib.error
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangup.config import LimitSettings
from hangup.core.call import Call
from hangup.core.jobs import Kind
from hangup.core.reaper import PendingStop
from hangup.gateway.apis.hosted_jobs import read_answer
from hangup.gateway.client.connection import ClientConnection
from hangup.gateway.client.handlers import RequestRouter
from hangup.gateway.log import Log
from hangup.gateway.reaper.stats import ReaperStats
from hangup.gateway.routing import Routing, Wanted
from hangup.gateway.tracing import Tracer
from support.house import House
from support.linux import linux_only
from support.processes import Gateway, StandIn, get_json
from support.raw import Client, ask
from support.raw_engine import DONE, HEAD, LAST, answer, chunk, event, raw_engine
from support.waiting import wait_until

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"


class TestConnections:
    """connections_max"""

    @pytest.fixture
    def small(self, engine: StandIn) -> Iterator[Gateway]:
        with Gateway(engine.url, connections_max=2) as gateway:
            yield gateway

    def test_one_more_is_told_why(self, small: Gateway) -> None:
        with Client(small.address) as one, Client(small.address), Client(small.address) as third:
            third.chat(max_tokens=1)
            got = third.read_answer()
            assert (got.status, got.headers["x-hangup-reason"]) == (503, "connections_max")
            assert int(got.headers["retry-after"]) >= 1
            assert got.headers["connection"] == "close"
            assert got.json()["error"]["message"]
            assert third.closed_within()
            row = small.call_log(got.headers["x-request-id"])
            assert (row["outcome"], row["cause"]) == ("shed", "connections_max")
            one.chat(max_tokens=1)
            assert one.read_answer().status == 200
        wait_until(lambda: small.metrics()["hangup_connections"] == 0)
        assert small.metrics()["hangup_connections_refused_total"] == 1
        assert ask(small.address, "/v1/chat/completions", {"messages": [], "max_tokens": 1}).status == 200

    def test_those_that_are_told_are_few(self, small: Gateway) -> None:
        """A flood of connections must not use more than the file descriptors reserved for it."""
        with Client(small.address), Client(small.address):
            wait_until(lambda: small.metrics()["hangup_connections"] == 2)
            before = small.open_files()
            flood = [socket.create_connection(small.address) for _ in range(200)]
            wait_until(lambda: small.metrics()["hangup_connections_refused_total"] == 200)
            assert small.open_files() <= before + 40
            for sock in flood:
                sock.close()


def test_bodies_on_their_way_in(engine: StandIn) -> None:
    """bodies_bytes_max, for all clients together: a body that is complete, refused or abandoned frees its bytes."""
    with Gateway(engine.url, bodies_bytes_max=1_000_000) as gateway:
        begun = POST + b"Content-Length: 900000\r\n\r\n" + b" " * 400_000
        with Client(gateway.address) as one, Client(gateway.address) as two:
            one.send(begun)
            two.send(begun)
            wait_until(lambda: gateway.metrics()["hangup_body_bytes"] == 800_000)
            with Client(gateway.address) as third:
                third.send(begun)
                got = third.read_answer()
                assert (got.status, got.headers["x-hangup-reason"]) == (503, "bodies_bytes_max")
                assert "retry-after" in got.headers
                assert third.closed_within()
            assert ask(gateway.address, "/v1/chat/completions", {"messages": [], "max_tokens": 1}).status == 200
            wait_until(lambda: gateway.metrics()["hangup_body_bytes"] == 800_000)
            one.fin()
            wait_until(lambda: gateway.metrics()["hangup_body_bytes"] == 400_000)
            body = json.dumps({"messages": [], "max_tokens": 1}).encode()
            two.send(body + b" " * (500_000 - len(body)))
            assert two.read_answer().status == 200
            wait_until(lambda: gateway.metrics()["hangup_body_bytes"] == 0)


class TestNames:
    """name_bytes_max"""

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("/v1/chat/completions", {"messages": []}),
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/responses", {"input": "x"}),
            ("/v1/messages", {"messages": [], "max_tokens": 1}),
            ("/api/chat", {"messages": []}),
            ("/api/generate", {"prompt": "x"}),
        ],
    )
    def test_a_long_one_is_refused(self, gateway: Gateway, engine: StandIn, path: str, value: dict[str, Any]) -> None:
        before = len(engine.seen())
        got = ask(gateway.address, path, {**value, "model": "m" * 5_000_000})
        assert (got.status, got.headers["x-hangup-reason"]) == (400, "bad_field")
        assert "name_bytes_max" in got.body.decode()
        row = gateway.call_log(got.headers["x-request-id"])
        assert row["model"] == ""
        assert len(json.dumps(row)) < 2000
        assert len(engine.seen()) == before
        listed = get_json(f"{gateway.admin_url}/api/calls/{got.headers['x-request-id']}")
        assert listed["model"] in ("", None)

    def test_a_long_one_that_is_only_searched_for(self, engine: StandIn) -> None:
        """With several backends, hangup searches a body for its model even if it reads nothing else in it."""
        with Gateway(engine.url, engine.url.replace("127.0.0.1", "localhost")) as several:
            got = ask(several.address, "/v1/embeddings", {"input": "x", "model": "m" * 5000})
            assert (got.status, got.headers["x-hangup-reason"]) == (400, "bad_field")
            assert "name_bytes_max" in got.body.decode()

    def test_a_long_one_in_a_question_is_not_looked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """hangup remembers the names that it looks up, so it sends a question with a long name to any backend instead."""
        looked_for: list[str] = []
        real = Routing.find

        def find(self: Routing, wanted: Wanted) -> Any:
            looked_for.append(wanted.model)
            return real(self, wanted)

        monkeypatch.setattr(Routing, "find", find)

        async def main() -> None:
            async with House() as house:
                house.gateway.routing.reads_bodies = True
                for length in (5, 5000):
                    body = json.dumps({"model": "m" * length, "prompt": "x"}).encode()
                    assert b" 200 OK" in await house.post("/tokenize", body)

        asyncio.run(main())
        assert looked_for[-1] == "mmmmm" and max(map(len, looked_for)) == 5

    def test_a_backend_with_very_many_models_has_a_short_log_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lines: list[dict[str, Any]] = []

        async def main() -> None:
            async with House() as house:
                house.backend.model_rows = [{"id": f"m{n}"} for n in range(500)]
                monkeypatch.setattr(house.gateway.log, "event", lambda event, **fields: lines.append(fields))
                house.gateway.routing.models_reported(house.backend)

        asyncio.run(main())
        (line,) = [line for line in lines if "models" in line]
        assert (line["models"], line["count"]) == ([f"m{n}" for n in range(100)], 500)

    def test_a_providers_job_keeps_no_long_one(self) -> None:
        job = {"id": "resp_1", "object": "response", "status": "in_progress", "background": True}
        for length, kept in (5, "mmmmm"), (5000, None):
            found = read_answer(Kind.RESPONSE, json.dumps({**job, "model": "m" * length}).encode())
            assert found is not None and found.model == kept

    @pytest.mark.parametrize("path", ["/completion", "/generate"])
    @pytest.mark.parametrize("model", [["a"], {"a": 1}, 7, True, None])
    def test_a_name_that_is_none(self, gateway: Gateway, path: str, model: object) -> None:
        """In an API without a model field, a value under that key names no model."""
        got = ask(gateway.address, path, {"prompt": "x", "inputs": "x", "n_predict": 1, "model": model})
        assert got.headers.get("x-hangup-reason") != "internal_error"
        assert gateway.call_log(got.headers["x-request-id"])["model"] == ""

    def test_bytes_not_characters(self, gateway: Gateway) -> None:
        for name, status in (("é" * 512, 200), ("é" * 513, 400)):
            got = ask(gateway.address, "/v1/chat/completions", {"messages": [], "max_tokens": 1, "model": name})
            assert got.status == status


class _Silent:
    """An owner and a transport that do nothing, for a connection on its own."""

    limits = LimitSettings(header_bytes_max=10**6)
    half_close_is_hangup = True
    body_bytes = 0

    def connected(self, connection: object) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def test_a_head_that_comes_byte_by_byte_is_read_once() -> None:
    """The cost of a byte must not grow with the bytes before it."""

    def cpu_s(size: int) -> float:
        loop = asyncio.new_event_loop()
        owner = _Silent()
        connection = ClientConnection(cast(RequestRouter[ClientConnection], owner), loop)
        connection.connection_made(cast(asyncio.BaseTransport, owner))
        data = [bytes([byte]) for byte in b"GET / HTTP/1.1\r\nx: " + b"a" * size]
        start = time.process_time()
        for byte in data:
            connection.data_received(byte)
        took = time.process_time() - start
        connection.connection_lost(None)
        loop.close()
        return took

    small, large = min(cpu_s(4_000) for _ in range(3)), min(cpu_s(32_000) for _ in range(3))
    assert large < 24 * small, "8 times the bytes; read anew with each of them it would be 64 times the work"


class _Disk(io.RawIOBase):
    """A file on a disk that is full after so many bytes, until it is emptied."""

    def __init__(self, room: int) -> None:
        self.data = b""
        self.room = room

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = bytes(data[: self.room])
        self.data += taken
        self.room -= len(taken)
        return len(taken)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 4)), min_size=1, max_size=8))
def test_a_full_disk_breaks_no_line_but_the_one_it_cut(steps: list[tuple[int, int]]) -> None:
    """Every line is complete or counted as dropped; no two are joined."""
    log = Log("none", 100)
    disk = _Disk(0)
    log._out = disk
    sent = 0
    for room, lines in steps:
        disk.room += room
        rows = [json.dumps({"line": sent + n, "text": "x" * 20}).encode() + b"\n" for n in range(lines)]
        sent += lines
        log._write(b"".join(rows))
    whole = 0
    for line in disk.data.split(b"\n"):
        try:
            whole += "line" in json.loads(line)
        except ValueError:
            assert not line.startswith(b"{") or line.count(b"{") == 1
    assert whole + log.dropped == sent


@linux_only
def test_the_log_counts_what_a_full_disk_did_not_take() -> None:
    """/dev/full behaves like a disk that is always full."""
    log = Log("/dev/full", 100)
    log.event("drain_started")
    log.close()
    assert log.dropped == 1


def test_stdout_on_a_full_disk_is_a_log_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's buffer does not report how much of a failed write succeeded: lines would be joined and miscounted."""
    disk = _Disk(10_000)
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BufferedWriter(disk)))
    log = Log("-", 100)
    line = json.dumps({"text": "x" * 200}).encode() + b"\n"
    log._write(line * 200)  # far more than the buffer holds
    disk.room = 10**6
    log._write(line)
    log.close()
    whole = disk.data.split(b"\n").count(line.strip())
    assert whole + log.dropped == 201
    assert whole == 10_000 // len(line) + 1


def test_not_ready_before_a_backend_has_answered() -> None:
    """An engine that accepts connections and never answers does not make the gateway ready."""
    deaf = socket.create_server(("127.0.0.1", 0))
    with deaf, Gateway(f"http://127.0.0.1:{deaf.getsockname()[1]}", health_timeout_s=30) as gateway:
        assert gateway.ready() == 503
    with StandIn() as engine, Gateway(engine.url) as gateway:
        wait_until(lambda: gateway.ready() == 200)


def test_draining_closes_connections_of_every_method(engine: StandIn) -> None:
    with Gateway(engine.url, drain_s=600) as gateway, Client(gateway.address) as running:
        running.chat(stream=True, max_tokens=20000, ignore_eos=True)
        running.read_until(b"data:")
        gateway.signal(signal.SIGTERM)
        wait_until(lambda: any(row["event"] == "drain_started" for row in gateway.log()))
        with Client(gateway.address) as late:
            late.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
            got = late.read_answer()
            assert (got.status, got.headers["connection"]) == (503, "close")
            assert late.closed_within()
        running.fin()


class TestAnswersAskedFor:
    """choices_max, however the request names the number"""

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("/v1/chat/completions", {"messages": [], "best_of": 1e9}),
            ("/v1/chat/completions", {"messages": [], "best_of": 10**9}),
            ("/v1/completions", {"prompt_embeds": ["x"] * 33}),
            ("/v1/completions", {"prompt": ["x"] * 16, "prompt_embeds": ["x"] * 17}),
            ("/v1/completions", {"prompt": "x", "prompt_embeds": ["x"] * 11, "n": 3}),
        ],
    )
    def test_too_many(self, gateway: Gateway, path: str, value: dict[str, Any]) -> None:
        got = ask(gateway.address, path, value)
        assert (got.status, got.headers["x-hangup-reason"]) == (400, "bad_field")

    def test_enough(self, gateway: Gateway) -> None:
        assert ask(gateway.address, "/v1/completions", {"prompt_embeds": ["x"] * 32, "max_tokens": 1}).status == 200


@pytest.mark.parametrize("key", ["Options", "OPTIONS", "Stream", "\u017ftream"])
def test_ollama_reads_keys_in_any_case(gateway: Gateway, engine: StandIn, key: str) -> None:
    """Go ignores case, so Ollama would heed the same key in other letters instead of our cap."""
    before = len(engine.seen())
    got = ask(gateway.address, "/api/chat", {"messages": [], key: {"num_predict": -2}})
    assert (got.status, got.headers["x-hangup-reason"]) == (400, "bad_field")
    assert len(engine.seen()) == before


def test_ollama_reads_keys_in_any_case_in_other_apis_too() -> None:
    """There such keys get the values that the gateway read and sends, so that they change neither cap nor model."""
    odd = {"Max_Tokens": -1, "MODEL": "other", "\u017ftream": False, "N": 50, "Temperature": 2}
    config = "[limits]\noutput_tokens_max = 100\n[[backend]]\nengine = 'ollama'\nurl = "
    stream = answer(HEAD + chunk(event("x") + event("", '"stop"') + DONE) + LAST)
    with raw_engine(stream) as engine, Gateway(config=f"{config}'{engine.url}'\n") as gateway:
        for given, expected in ({"max_tokens": 500}, 100), ({}, None):
            got = ask(gateway.address, "/v1/chat/completions", {"model": "m", "messages": [], **given, **odd})
            assert got.status == 200
            sent = json.loads(engine.requests[-1].partition(b"\r\n\r\n")[2])
            assert sent["Max_Tokens"] == sent.get("max_tokens") == expected
            assert (sent["MODEL"], sent["\u017ftream"], sent["N"], sent["Temperature"]) == ("m", True, None, 2)


def test_the_log_takes_any_number() -> None:
    """A log line that cannot be written must not prevent a call's end."""
    log = Log("none", 100)
    log._out = _Disk(10**6)
    log.event("drain_started", live=2**70, text="\ud800")
    assert json.loads(log._lines.popleft())["live"] == 2**70


def test_a_gateway_that_was_stopped_cuts_nobody_whose_tokens_wait() -> None:
    """After a SIGSTOP longer than gap_s, the gateway reads what the engine sent meanwhile before it checks the timeout."""
    with (
        StandIn(token_s=0.05) as engine,
        Gateway(engine.url, gap_s=3, first_token_s=60) as gateway,
        Client(gateway.address) as client,
    ):
        client.chat(stream=True, ignore_eos=True, max_tokens=100)
        client.read_until(b"data:")
        gateway.signal(signal.SIGSTOP)
        time.sleep(4.5)  # time that passes for nobody but the engine
        gateway.signal(signal.SIGCONT)
        assert b"error" not in client.read_until(b"[DONE]")


class TestWhatIsRemembered:
    """Each list of past things is bounded."""

    def test_ended_calls(self, engine: StandIn) -> None:
        with Gateway(engine.url, ended_calls_max=3) as gateway:
            for n in range(6):
                headers = {"X-Request-Id": f"call-{n}"}
                assert ask(gateway.address, "/v1/chat/completions", {"messages": [], "max_tokens": 1}, headers).status == 200
            gateway.call_log("call-5")
            found = []
            for n in range(6):
                with contextlib.suppress(urllib.error.HTTPError):
                    found.append(get_json(f"{gateway.admin_url}/api/calls/call-{n}")["id"])
            assert found == ["call-3", "call-4", "call-5"]

    def test_the_dashboards_history(self, engine: StandIn) -> None:
        """history_looks_max: what is older is forgotten, and known in minutes only."""
        with Gateway(engine.url, history_looks_max=3, counters_interval_s=0.1) as gateway:
            seen: set[int] = set()
            last: set[float] = set()

            def look() -> bool:
                rows = get_json(f"{gateway.admin_url}/api/history?seconds=0.25")["rows"]
                seen.add(len(rows))
                last.update(row["end"] for row in rows)
                return len(last) > 8

            wait_until(look, what="more looks than are remembered")
            assert max(seen) <= 3
            whole = get_json(f"{gateway.admin_url}/api/history?seconds=3600")
            assert whole["length_s"] == 60 and len(whole["rows"]) <= 2

    def test_the_dashboards_events(self) -> None:
        """history_events_max"""
        log = Log("none", 1, events_max=2)
        for number in range(4):
            log.event("backend_changed", backend="b", change=f"change {number}")
            log.event("drain_started", live=1)  # the dashboard does not list it
        assert [row["change"] for row in log.events] == ["change 2", "change 3"]

    def test_stories_of_zombies(self) -> None:
        """zombie_stories_max"""
        stats = ReaperStats([], 3)
        for n in range(9):
            stats.remember("b", PendingStop(f"call-{n}", 0.0))
        assert [stop.call_id for _, stop in stats.zombies] == ["call-6", "call-7", "call-8"]

    def test_calls_that_wait_to_be_traced(self) -> None:
        """traced_calls_max"""
        tracer = Tracer(cast(Any, None), calls_max=3, release_s=3600.0, close_s=0.0)
        for n in range(9):
            call = Call(f"call-{n}", 0.0)
            tracer.begin(call, None, "POST", "/")
            tracer.end(call)
        assert tracer.dropped == 6


def test_bytes_behind_a_running_call(engine: StandIn) -> None:
    """pipelined_bytes_max: more bytes are dropped, and the connection closes after the answer."""
    with Gateway(engine.url, pipelined_bytes_max=1000) as gateway, Client(gateway.address) as client:
        body = b'{"messages":[],"stream":true,"max_tokens":20,"ignore_eos":true}'
        more = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nx: " + b"a" * 2000 + b"\r\n\r\n"
        client.send(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + more)  # at once: so it is behind a running call
        client.read_until(b"0\r\n\r\n")
        assert client.closed_within()
        assert client.buffer == b""
