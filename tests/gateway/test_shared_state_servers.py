"""What hangup asks of the store, on each kind of server: one, with TLS, behind Sentinel, a Cluster, and Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from hangup.core.members import EndedCall, Lead, LeftCall, RecordChanges
from hangup.gateway.hosts.store import Heritage, Letter, SharedStateFailed, Store
from hangup.gateway.members.member import CallsReport
from support.redis_server import RedisServer, free_port, require_redis, require_valkey
from support.waiting import wait_until


@pytest.fixture(scope="module", autouse=True)
def _needs_redis() -> None:
    require_redis()


@contextlib.contextmanager
def one_server(_: Path) -> Iterator[str]:
    with RedisServer("--requirepass", "secret") as server:
        yield f"redis://:secret@127.0.0.1:{server.port}/1"


@contextlib.contextmanager
def with_tls(folder: Path) -> Iterator[str]:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    ca, cert, key = (str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(ca)
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    files = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca, "--tls-auth-clients", "no"]
    with RedisServer(*files, tls=True) as server:
        yield f"rediss://127.0.0.1:{server.port}?ssl_ca_certs={ca}"


@contextlib.contextmanager
def behind_sentinel(folder: Path) -> Iterator[str]:
    with RedisServer("--requirepass", "secret") as server:
        watch = folder / "sentinel.conf"
        watch.write_text(f"sentinel monitor main 127.0.0.1 {server.port} 1\nsentinel auth-pass main secret\n")
        with RedisServer("--sentinel", config=str(watch)) as sentinel:
            yield f"redis+sentinel://:secret@127.0.0.1:{sentinel.port}/main?db=1"


@contextlib.contextmanager
def in_a_cluster(_: Path, password: str = "") -> Iterator[str]:
    with RedisServer("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        server.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        until = time.monotonic() + 60
        while "cluster_state:ok" not in server.command("CLUSTER", "INFO") and time.monotonic() < until:
            time.sleep(0.05)
        if password:
            server.command("CONFIG", "SET", "requirepass", password)
        yield f"redis+cluster://127.0.0.1:{server.port}"


@contextlib.contextmanager
def on_valkey(_: Path) -> Iterator[str]:
    with RedisServer(program=require_valkey()) as server:
        yield server.url


@contextlib.contextmanager
def in_a_locked_cluster(_: Path) -> Iterator[str]:
    with in_a_cluster(_, "secret") as url:
        yield url.replace("//", "//:secret@")


def test_a_cluster_that_cannot_be_reached() -> None:
    async def ask() -> None:
        store = Store("redis+cluster://127.0.0.1:1", "test", 5.0)
        with pytest.raises(SharedStateFailed, match="cannot use redis"):
            await store.check()
        await store.close()

    asyncio.run(ask())


@pytest.mark.parametrize("server", [one_server, behind_sentinel, in_a_locked_cluster])
def test_the_password_may_come_from_elsewhere(server, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """It is asked for each connection, so a password that a reload has read is used from the next one on."""
    passwords = ["wrong", "secret"]

    async def ask(url: str) -> None:
        assert ":secret@" in url
        store = Store(url.replace(":secret@", "default@"), "test", 5.0, lambda: passwords[0])
        try:
            with pytest.raises(SharedStateFailed) as raised:
                await store.check()
            assert "wrong:" not in str(raised.value) and "secret" not in str(raised.value)
            passwords.remove("wrong")
            until = time.monotonic() + 60
            while True:
                try:
                    await store.check()
                    break
                except SharedStateFailed:  # Sentinel takes a moment to know its master
                    assert time.monotonic() < until
                    await asyncio.sleep(0.1)
        finally:
            await store.close()

    with server(tmp_path) as url:
        asyncio.run(ask(url))


@pytest.mark.parametrize("server", [one_server, with_tls, behind_sentinel, in_a_cluster, on_valkey])
def test_everything_that_hangup_asks_of_the_store(server, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    async def ask(url: str) -> None:
        store = Store(url, "test", 5.0)
        until = time.monotonic() + 60
        while True:  # Sentinel takes a moment to know its master
            try:
                await store.check()
                break
            except SharedStateFailed:
                assert time.monotonic() < until
                await asyncio.sleep(0.1)
        assert await store.own_host() == "127.0.0.1"
        call = LeftCall("id", "engine", "key", "tenant", "model", 3, 1)
        mine = {"seq": 1, "term": 0}
        found = await store.exchange("a", mine, CallsReport([call], [], 1, {}), whole=True, leads=True)
        assert found.lead is None and found.orders == {} and found.has_calls and found.snapshots == {"a": mine}
        assert await store.take_lead("a", 1, None) == Heritage({}, [], {})
        assert await store.take_lead("b", 1, None) is None, "somebody leads already"
        lead = Lead("a", 1, 5)
        assert await store.write_orders(lead, {"a": {"term": 1}, "b": {"term": 1}}, [])
        found = await store.exchange("b", mine, CallsReport([], [], 0, {}), whole=False, leads=False)
        assert (found.lead, found.orders, found.has_calls) == (lead, {"term": 1}, False)
        assert await store.calls_of("a") == [call]
        assert await store.take_lead("b", 2, Lead("a", 1, 4)) is None, "its beat has changed"
        ended = [EndedCall(key, "engine", key, 0.5, False, 0, 1, None, True, "t", "m", "client_gone") for key in "123"]
        assert await store.record("a", 1, RecordChanges(True, ended, [], {"engine": {"rung": "degraded"}}))
        assert await store.record("a", 1, RecordChanges(False, [], [("engine", "2")], {}))
        left = Heritage({"a": {"term": 1}, "b": {"term": 1}}, [ended[0], ended[2]], {"engine": {"rung": "degraded"}})
        taken = await store.take_lead("b", 2, lead)
        assert taken is not None and replace(taken, calls=sorted(taken.calls)) == left
        again = await store.take_lead("b", 2, Lead("b", 2, 0))
        assert again == taken, "the first answer may have been lost"
        assert not await store.record("a", 1, RecordChanges(True, [], [], {})), "it leads no longer"
        letters = [Letter("a", {"n": number}, None) for number in range(150)]
        assert not await store.post("a", 1, letters), "not as the leader"
        assert await store.post("b", 2, letters[:1]) and await store.post("a", None, letters[1:])
        found_mail: list[Any] = []
        while len(found_mail) < 150:
            found_mail += await store.receive("a")
        assert found_mail == [letter.entry for letter in letters] and await store.receive("a") == []
        assert not await store.write_orders(lead, {"b": {"term": 1}}, ["b"]), "it leads no longer"
        assert await store.write_orders(Lead("b", 2, 1), {}, ["a"])
        found = await store.exchange("b", mine, CallsReport([], ["id"], 0, {}), whole=False, leads=True)
        assert list(found.snapshots) == ["b"] and await store.calls_of("a") == []
        await store.leave("b", {"seq": 2, "left": True}, 2)
        found = await store.exchange("a", mine, CallsReport([], [], 0, {}), whole=True, leads=True)
        assert found.lead is None and found.snapshots["b"]["left"]
        await store.close()

    with server(tmp_path) as url:
        asyncio.run(ask(url))


@contextlib.contextmanager
def three_masters_and_a_replica(key: str) -> Iterator[tuple[str, RedisServer, RedisServer]]:
    """A Cluster, the server with this key, and its replica. Three masters must be there to agree on a failover."""
    with contextlib.ExitStack() as stack:
        buses = [free_port() for _ in range(4)]
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "500", "--cluster-replica-validity-factor", "0"]
        options += ["--repl-diskless-sync-delay", "0"]
        nodes = [stack.enter_context(RedisServer(*options, "--cluster-port", str(bus))) for bus in buses]
        first, second, third, replica = nodes
        slot = int(first.command("CLUSTER", "KEYSLOT", key)[1:])
        others = [number for number in range(3) if number != slot][:2]
        for node, number in zip((second, third), others, strict=True):  # a master without a slot has no vote
            node.command("CLUSTER", "ADDSLOTS", str(number))
        low, high = others
        ranges = [(start, end) for start, end in ((0, low - 1), (low + 1, high - 1), (high + 1, 16383)) if start <= end]
        first.command("CLUSTER", "ADDSLOTSRANGE", *(str(part) for bounds in ranges for part in bounds))
        for epoch, node in enumerate(nodes):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", str(epoch + 1))
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            first.command("CLUSTER", "MEET", "127.0.0.1", str(node.port), str(bus))
        wait_until(lambda: all("cluster_known_nodes:4" in node.command("CLUSTER", "INFO") for node in nodes))
        name = first.command("CLUSTER", "MYID").split("\r\n")[1]
        wait_until(lambda: "OK" in replica.command("CLUSTER", "REPLICATE", name), what="the replica")
        wait_until(lambda: "master_link_status:up" in replica.command("INFO", "replication"), what="its copy")
        wait_until(lambda: all("cluster_state:ok" in node.command("CLUSTER", "INFO") for node in nodes))
        yield f"redis+cluster://127.0.0.1:{first.port}", first, replica


def test_a_failover_in_a_cluster() -> None:
    """Exchanges fail for a moment, and then reach the replica, with what was written before. The server that the address names
    is the one that dies."""

    async def ask(url: str, master: RedisServer, replica: RedisServer) -> None:
        store = Store(url, "test", 1.0)
        call = LeftCall("id", "engine", "key", "tenant", "model", 3, 1)
        await store.exchange("a", {"seq": 1, "term": 0}, CallsReport([call], [], 1, {}), whole=True, leads=False)
        assert await store.take_lead("a", 1, None) is not None
        wait_until(lambda: replica.command("DBSIZE") == master.command("DBSIZE"), what="the copy of all that")
        master.stop()
        until, failures = time.monotonic() + 60, 0
        while True:
            try:
                await store.check()
                found = await store.exchange("a", {"seq": 2, "term": 1}, CallsReport([], [], 1, {}), whole=False, leads=True)
                break
            except SharedStateFailed:
                failures += 1
                assert time.monotonic() < until
                await asyncio.sleep(0.1)
        assert failures and found.has_calls and found.lead == Lead("a", 1, 0)
        assert await store.write_orders(Lead("a", 1, 1), {"a": {"term": 1}}, [])
        assert await store.calls_of("a") == [call]
        await store.close()

    with three_masters_and_a_replica("hangup:{test}:lead") as (url, master, replica):
        asyncio.run(ask(url, master, replica))
