"""Every amount that a client decides about has a bound, a name for it, and somebody who runs into it: here."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from hangup.config import Limits
from hangup.edge.connection import ClientConnection, Owner
from support.processes import Gateway, StandIn, get_json
from support.raw import Client, ask
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
            assert third.closed_within(5)
            row = small.call_log(got.headers["x-request-id"])
            assert (row["outcome"], row["cause"]) == ("shed", "connections_max")
            one.chat(max_tokens=1)
            assert one.read_answer().status == 200
        wait_until(lambda: small.metrics()["hangup_connections"] == 0)
        assert small.metrics()["hangup_connections_refused_total"] == 1
        assert ask(small.address, "/v1/chat/completions", {"messages": [], "max_tokens": 1}).status == 200

    def test_those_that_are_told_are_few(self, small: Gateway) -> None:
        """A flood of connections costs no more descriptors than there are for it."""
        with Client(small.address), Client(small.address):
            wait_until(lambda: small.metrics()["hangup_connections"] == 2)
            before = small.open_files()
            flood = [socket.create_connection(small.address) for _ in range(200)]
            wait_until(lambda: small.metrics()["hangup_connections_refused_total"] == 200)
            assert small.open_files() <= before + 40
            for sock in flood:
                sock.close()


def test_bodies_on_their_way_in(engine: StandIn) -> None:
    """bodies_bytes_max: of all clients together; who is complete, refused or gone makes room."""
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
                assert third.closed_within(5)
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

    def test_bytes_not_characters(self, gateway: Gateway) -> None:
        for name, status in (("é" * 512, 200), ("é" * 513, 400)):
            got = ask(gateway.address, "/v1/chat/completions", {"messages": [], "max_tokens": 1, "model": name})
            assert got.status == status


class _Silent:
    """An owner and a transport that do nothing, for a connection alone."""

    limits = Limits(header_bytes_max=10**6)
    half_close_is_hangup = True
    body_bytes = 0

    def connected(self, connection: object) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def test_a_head_that_comes_byte_by_byte_is_read_once() -> None:
    """What a byte costs must not grow with what came before it."""

    def cpu_s(size: int) -> float:
        loop = asyncio.new_event_loop()
        owner = _Silent()
        connection = ClientConnection(cast(Owner, owner), loop)
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
