"""Backends by discovery: one for every address behind a name, followed as they come and go."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.dns import DnsServer, free_dns_port, needs_dnsmasq
from support.processes import Gateway, StandIn, get_json
from support.waiting import PATIENCE_S, wait_until

pytestmark = needs_dnsmasq
NAME = "engines.test"
FAST: dict[str, Any] = {"dns_interval_s": 0.1, "dns_gone_s": 0.5, "health_interval_s": 0.1, "dns_timeout_s": 0.5}


@pytest.fixture
def dns_server(tmp_path: Path) -> Iterator[DnsServer]:
    with DnsServer(tmp_path) as server:
        yield server


@pytest.fixture
def engines() -> Iterator[list[StandIn]]:
    """Two engines on one port of two addresses."""
    with StandIn(host="127.0.0.2") as first, StandIn(first.port, host="127.0.0.3") as second:
        yield [first, second]


def gateway_for(server: DnsServer, engines: list[StandIn], **settings: Any) -> Gateway:
    return Gateway(f"dns+http://{NAME}:{engines[0].port}", dns_server=server.address, **(FAST | settings))


def states(gateway: Gateway) -> dict[str, str]:
    return {row["name"]: row["state"] for row in get_json(f"{gateway.admin_url}/api/backends")["backends"]}


def events(gateway: Gateway, name: str) -> list[dict[str, Any]]:
    return [row for row in gateway.log() if row.get("event") == name]


def ask(gateway: Gateway, tokens: int = 1, **more: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, **more}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)


def calls_of(engine: StandIn) -> int:
    return sum(row["path"] == "/v1/chat/completions" for row in engine.seen())


def wait_for(gateway: Gateway, expected: dict[str, str]) -> None:
    wait_until(lambda: states(gateway) == expected, what=f"{expected}, which are {states(gateway)}")


def test_several_workers_follow_a_name(dns_server: DnsServer, engines: list[StandIn]) -> None:
    """Each worker asks DNS itself; what operators see is of the whole, and stops are verified."""
    first, second = engines
    port = first.port
    dns_server.serve(NAME, "127.0.0.2")
    with gateway_for(dns_server, engines, workers=2) as gateway:
        wait_for(gateway, {f"127.0.0.2:{port}": "up"})
        wait_until(lambda: ask(gateway).is_success and calls_of(first), what="calls on the first")
        dns_server.serve(NAME, "127.0.0.3")
        wait_for(gateway, {f"127.0.0.3:{port}": "up"})
        assert all(ask(gateway).is_success for _ in range(8)) and calls_of(second) >= 8
        second.behave(token_s=0.02, answer_tokens=30_000)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        for _ in range(6):
            with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=body, timeout=PATIENCE_S) as stream:
                next(stream.iter_bytes())
        verified = f'hangup_releases_total{{backend="127.0.0.3:{port}",result="verified"}}'
        wait_until(lambda: gateway.metrics().get(verified) == 6, what="the proof of every stop")
        assert second.stats()["running"] == 0 and not events(gateway, "zombie_found")


def test_those_that_leave_are_drained_and_new_ones_get_a_canary_first(dns_server: DnsServer, engines: list[StandIn]) -> None:
    first, second = engines
    port = first.port
    dns_server.serve(NAME, "127.0.0.2", "127.0.0.3")
    with gateway_for(dns_server, engines, dns_gone_s=3) as gateway:
        wait_for(gateway, {f"127.0.0.2:{port}": "up", f"127.0.0.3:{port}": "up"})
        wait_until(lambda: ask(gateway).is_success and calls_of(first) and calls_of(second), what="calls on both")
        second.behave(token_s=0.02)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, "stream": True}
        client = httpx.Client(timeout=PATIENCE_S)
        streams = []
        while not second.stats()["running"]:
            request = client.build_request("POST", f"{gateway.url}/v1/chat/completions", json=body)
            streams.append(client.send(request, stream=True))
        dns_server.serve(NAME, "127.0.0.2")
        wait_for(gateway, {f"127.0.0.2:{port}": "up", f"127.0.0.3:{port}": "not in DNS, up"})
        before = calls_of(second)
        assert all(ask(gateway).is_success for _ in range(10))
        assert calls_of(second) == before, "one that DNS no longer lists gets no new calls"
        wait_for(gateway, {f"127.0.0.2:{port}": "up"})
        for stream in streams:  # the calls that it had go on to their end
            assert stream.read().endswith(b"data: [DONE]\n\n")
            assert b'"finish_reason":"stop"' in stream.content
        client.close()
        with StandIn(port, host="127.0.0.4") as third:
            third.behave(fail_status=500)
            dns_server.serve(NAME, "127.0.0.2", "127.0.0.4")
            wait_for(gateway, {f"127.0.0.2:{port}": "up", f"127.0.0.4:{port}": "warming up, up"})
            wait_until(lambda: events(gateway, "warm_up_failed"), what="a canary that fails")
            assert all(ask(gateway).is_success for _ in range(10)), "no call goes to one that has not answered a canary"
            assert calls_of(third) == 0
            third.behave(fail_status=0)
            wait_for(gateway, {f"127.0.0.2:{port}": "up", f"127.0.0.4:{port}": "up"})
            wait_until(lambda: ask(gateway).is_success and calls_of(third), what="calls on the new one")


def test_a_server_that_does_not_answer_changes_nothing(dns_server: DnsServer, engines: list[StandIn]) -> None:
    dns_server.serve(NAME, "127.0.0.2")
    with gateway_for(dns_server, engines, dns_timeout_s=0.2) as gateway:
        dns_server.pause()
        wait_until(lambda: events(gateway, "dns_failed"), what="a DNS failure")
        until = time.monotonic() + 3 * FAST["dns_gone_s"]
        wait_until(lambda: ask(gateway).is_success and time.monotonic() > until, what="calls")
        assert len(events(gateway, "dns_failed")) == 1, "once, not at each query"
        dns_server.resume()
        wait_until(lambda: events(gateway, "dns_recovered"), what="DNS again")
        assert list(states(gateway)) == [f"127.0.0.2:{engines[0].port}"]


def test_a_name_without_addresses_is_served_again_when_it_has_some(dns_server: DnsServer, engines: list[StandIn]) -> None:
    with gateway_for(dns_server, engines) as gateway:
        assert gateway.ready() == 503
        refused = ask(gateway)
        assert (refused.status_code, refused.headers["x-hangup-reason"]) == (503, "no_backend")
        assert httpx.get(f"{gateway.url}/v1/models").status_code == 503
        dns_server.serve(NAME, "127.0.0.2")
        wait_until(lambda: ask(gateway).is_success, what="an answer")
        wait_until(lambda: gateway.ready() == 200, what="readiness")
        dns_server.serve("other.test", "127.0.0.2")
        wait_until(lambda: states(gateway) == {}, what="no backend")
        assert ask(gateway).status_code == 503


def test_a_start_without_dns(tmp_path: Path, engines: list[StandIn]) -> None:
    port = free_dns_port()
    with Gateway(f"dns+http://{NAME}:{engines[0].port}", dns_server=f"127.0.0.1:{port}", **FAST) as gateway:
        assert ask(gateway).status_code == 503
        with DnsServer(tmp_path, port=port) as server:
            server.serve(NAME, "127.0.0.3")
            wait_until(lambda: ask(gateway).is_success, what="an answer")


def test_srv_records_tell_host_and_port(tmp_path: Path, engines: list[StandIn]) -> None:
    record = "--srv-host=_llm._tcp.engines.test,{},{},{}"
    with (
        StandIn() as third,
        DnsServer(
            tmp_path,
            record.format("b.test", engines[1].port, 0),
            record.format("c.test", third.port, 5),  # of a later priority
        ) as server,
    ):
        server.serve("b.test", "127.0.0.3")
        with Gateway("dns+http://_llm._tcp.engines.test", dns_server=server.address, **FAST) as gateway:
            wait_for(gateway, {f"127.0.0.3:{engines[1].port}": "up"})
            assert ask(gateway).is_success


def test_no_more_backends_than_dns_addresses_max(dns_server: DnsServer, engines: list[StandIn]) -> None:
    dns_server.serve(NAME, "127.0.0.2", "127.0.0.3")
    with gateway_for(dns_server, engines, dns_addresses_max=1) as gateway:
        wait_for(gateway, {f"127.0.0.2:{engines[0].port}": "up"})
        changes = wait_until(lambda: events(gateway, "dns_changed"), what="the log line")
        assert changes[0]["ignored"] == 1


def test_a_reload_keeps_what_is_known(dns_server: DnsServer, engines: list[StandIn]) -> None:
    dns_server.serve(NAME, "127.0.0.2")
    backend = f'[[backend]]\nname = "vllm"\nurl = "dns+http://{NAME}:{engines[0].port}"\n'
    with Gateway(config=backend, dns_server=dns_server.address, **(FAST | {"dns_timeout_s": 0.2})) as gateway:
        assert list(states(gateway)) == [f"vllm-127.0.0.2:{engines[0].port}"]
        dns_server.pause()
        assert gateway.config_path is not None
        for text in (backend + "weight = 2.0\n", backend + 'api_key_env = "HANGUP_NO_SUCH_KEY"\n'):
            gateway.config_path.write_text(text)
            before = reloads(gateway)
            gateway.signal(signal.SIGHUP)
            wait_until(partial(_more_reloads, gateway, before), what="the reload")
            assert ask(gateway).is_success, json.dumps(gateway.log()[-3:])
            assert list(states(gateway)) == [f"vllm-127.0.0.2:{engines[0].port}"]


def test_a_name_takes_no_backend_away_that_is_configured_or_behind_another_name(tmp_path: Path, engines: list[StandIn]) -> None:
    port = engines[0].port
    urls = [f"http://127.0.0.2:{port}", f"dns+http://{NAME}:{port}", f"dns+http://others.test:{port}"]
    with DnsServer(tmp_path, "--host-record=others.test,127.0.0.3") as server:
        server.serve(NAME, "127.0.0.2", "127.0.0.3")
        with Gateway(*urls, dns_server=server.address, **FAST) as gateway:
            wait_for(gateway, {f"127.0.0.2:{port}": "up", f"127.0.0.3:{port}": "up"})
            server.serve(NAME, "127.0.0.4")  # where nobody is
            wait_until(lambda: _listed_last(gateway, urls[1]) == [f"127.0.0.4:{port}"], what="a name that forgets the others")
            wait_for(gateway, {f"127.0.0.2:{port}": "up", f"127.0.0.3:{port}": "up", f"127.0.0.4:{port}": "down"})
            assert "DNS: missing" not in [row["change"] for row in events(gateway, "backend_changed")]


def _listed_last(gateway: Gateway, url: str) -> list[str]:
    return next((list(row["addresses"]) for row in reversed(events(gateway, "dns_changed")) if row["url"] == url), [])


def reloads(gateway: Gateway) -> int:
    return len(events(gateway, "config_reloaded")) + len(events(gateway, "config_reload_failed"))


def _more_reloads(gateway: Gateway, before: int) -> bool:
    return reloads(gateway) > before
