"""Case 27: the admin port needs a token beyond loopback, and other sites cannot use it."""

from __future__ import annotations

import contextlib
import select
from urllib.parse import urlsplit

import pytest
from starlette.datastructures import Headers

from admin.test_api import admin, streaming
from hangup.gateway.admin.guard import Policy
from hangup.gateway.http.hosts import is_loopback
from support.processes import Gateway, Process, StandIn
from support.raw import Client
from support.waiting import wait_until

POLICY = Policy.of("", "ops.example", "127.0.0.1")
SECRET = Policy.of("s3cret", "", "0.0.0.0")
OURS = {"host": "127.0.0.1:8081", "x-hangup": "1"}


def verdict(policy: Policy, method: str = "GET", path: str = "/api/calls", **headers: str) -> int:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    refused = policy.refuses(method, path, Headers(given))
    return refused[0] if refused else 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8081", 200),
        ("localhost:8081", 200),
        ("[::1]:8081", 200),
        ("ops.example", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("evil@localhost", 421),
        ("[::1", 421),
        ("[evil]", 421),
        ("", 421),
    ],
)
def test_only_our_names_are_answered_to(host: str, status: int) -> None:
    """In DNS rebinding, a web page points its own name at 127.0.0.1 and sends that name as the host."""
    assert verdict(POLICY, host=host) == status


@pytest.mark.parametrize("method", ["DELETE", "PUT", "POST"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:8081", "sec_fetch_site": "same-origin"}, 200),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
    ],
)
def test_what_changes_something_refuses_other_sites(method: str, headers: dict[str, str], status: int) -> None:
    assert verdict(POLICY, method, **OURS, **headers) == status


def test_what_any_page_can_send_is_not_enough() -> None:
    assert verdict(POLICY, "DELETE", host="127.0.0.1:8081") == 403


def test_the_token_is_asked_for_everywhere_but_at_the_probes() -> None:
    assert verdict(SECRET, **OURS) == 401
    assert verdict(SECRET, **OURS, authorization="Bearer wrong") == 401
    assert verdict(SECRET, **OURS, authorization="Basic s3cret") == 401
    assert verdict(SECRET, **OURS, authorization="Bearer s3cret") == 200
    assert verdict(SECRET, path="/metrics", **OURS) == 401
    assert verdict(SECRET, path="/healthz", **OURS) == 200


def test_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "example.com", ""]))


def test_off_loopback_no_start_without_a_token() -> None:
    with Process("serve", "--port", "0", "--admin-port", "0", "--admin-host", "0.0.0.0") as refused:
        assert refused.wait() == 1
        assert "needs a token" in "\n".join(refused.stderr_lines)
    with Process("serve", "--port", "0", "--admin-port", "0", "--admin-token-env", "NO_SUCH") as refused:
        assert refused.wait() == 2, "an error of the configuration"
        assert "NO_SUCH" in "\n".join(refused.stderr_lines)


def test_a_kill_from_another_site_is_refused_on_the_wire(gateway: Gateway) -> None:
    with streaming(gateway, "target"):
        assert admin(gateway, "DELETE", "/api/calls/target", {"origin": "https://evil.example"})[0] == 403
        assert admin(gateway, "GET", "/api/calls", {"host": "evil.example"})[0] == 421
        assert admin(gateway, "GET", "/api/calls/target")[1]["outcome"] is None


@pytest.mark.parametrize("headers", [{"Host": "["}, {"Host": "[::1"}, {"Host": "a:b:c]"}, {"Origin": "http://["}])
def test_names_that_are_none_are_refused(gateway: Gateway, headers: dict[str, str]) -> None:
    for method in ("GET", "DELETE"):
        address = urlsplit(gateway.admin_url)
        with Client((address.hostname or "", address.port or 0)) as client:
            lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "localhost", "x-hangup": "1", **headers}.items())
            client.send(f"{method} /api/calls?id=none HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
            status = client.read_answer().status
        assert status == (421 if "Host" in headers else 200 if method == "GET" else 403)
    assert not [row for row in gateway.log() if row["event"] == "internal_error"]


class TestConnections:
    """The admin port shares its file descriptors with the data port."""

    def test_silent_ones_are_closed(self, engine: StandIn) -> None:
        with Gateway(engine.url, header_s=3) as gateway:
            address = urlsplit(gateway.admin_url)
            where = (address.hostname or "", address.port or 0)
            with Client(where) as silent, Client(where) as slow, Client(where) as watching:
                slow.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-")
                watching.send(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                watching.read_until(b"data:")
                assert silent.closed_within()
                assert slow.closed_within()
                watching.read_until(b"data:")
                watching.read_until(b"data:")

    def test_they_are_few(self, engine: StandIn) -> None:
        with Gateway(engine.url, admin_connections_max=4) as gateway:
            address = urlsplit(gateway.admin_url)
            where = (address.hostname or "", address.port or 0)
            wait_until(lambda: gateway.ready() == 200)
            before = gateway.open_files()
            clients = [Client(where) for _ in range(30)]
            socks = [client.sock for client in clients]
            wait_until(lambda: len(select.select(socks, [], [], 0)[0]) >= 26, what="all but four to be turned away")
            wait_until(lambda: gateway.open_files() <= before + 5)
            for client in clients:
                client.sock.close()
            wait_until(lambda: gateway.open_files() <= before)
            assert gateway.ready() == 200

    def test_no_large_request(self, gateway: Gateway) -> None:
        address = urlsplit(gateway.admin_url)
        with Client((address.hostname or "", address.port or 0)) as client:
            with contextlib.suppress(ConnectionError):
                client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
                for _ in range(2000):
                    client.send(b"x-a: " + b"a" * 1000 + b"\r\n")
            assert client.closed_within()
