"""`hangup serve --workers N`, with real processes: workers that die, hang, drain and reload, while the others serve on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.linux import proc
from support.processes import Gateway, Process, StandIn, get_json
from support.raw import Client
from support.waiting import PATIENCE_S, wait_until

SLOTS = 8
LONG = 30_000  # tokens: five minutes


@contextlib.contextmanager
def engine_and_gateway(*, deaf_to: str = "", **settings: Any) -> Iterator[tuple[StandIn, Gateway]]:
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(StandIn(slots=32, prefill_s=0.01, token_s=0.01, answer_tokens=LONG, deaf_to=deaf_to))
        gateway = stack.enter_context(Gateway(engine.url, workers=2, **settings))
        started(gateway, 2)
        yield engine, gateway


def workers_of(gateway: Gateway) -> list[int]:
    """Return the pids of the worker processes that run now."""
    tasks = proc(gateway.popen.pid, "task").iterdir()
    children = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
    return sorted(pid for pid in children if b"hangup.gateway.workers" in proc(pid, "cmdline").read_bytes())


def events(gateway: Gateway, event: str) -> list[dict[str, Any]]:
    return [row for row in gateway.log() if row.get("event") == event]


def started(gateway: Gateway, count: int) -> None:
    wait_until(lambda: len(events(gateway, "worker_started")) >= count, what=f"{count} starts of workers")


def admin(gateway: Gateway, method: str, path: str) -> Any:
    request = urllib.request.Request(gateway.admin_url + path, method=method, headers={"x-hangup": "1"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


class Streams:
    """Clients whose streams have begun."""

    def __init__(self, gateway: Gateway, count: int, max_tokens: int = LONG) -> None:
        self.clients = [Client(gateway.address) for _ in range(count)]
        for number, client in enumerate(self.clients):
            client.chat({"X-Request-Id": f"stream-{number}"}, stream=True, max_tokens=max_tokens)
        for client in self.clients:
            assert client.read_head()[0] == 200

    def close(self) -> None:
        for client in self.clients:
            client.sock.close()


class Load:
    """Threads that call all the time, each call over a new connection, and count what they get."""

    def __init__(self, gateway: Gateway, threads: int = 3) -> None:
        self.outcomes: Counter[str] = Counter()
        self._gateway = gateway
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with Client(self._gateway.address) as client:
                    client.chat(max_tokens=3)
                    self.outcomes[str(client.read_answer().status)] += 1
            except (OSError, AssertionError) as error:
                self.outcomes[type(error).__name__] += 1

    def wait_for_more(self, calls: int = 10) -> None:
        before = self.outcomes.total()
        wait_until(lambda: self.outcomes.total() >= before + calls, what="more calls")

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


@pytest.fixture(scope="module")
def engine() -> Iterator[StandIn]:
    """It would take more calls than it gets: `slots` of the gateway is what counts."""
    with StandIn(slots=4 * SLOTS, prefill_s=0.01, token_s=0.01, answer_tokens=LONG) as process:
        yield process


@pytest.fixture(scope="module")
def gateway(engine: StandIn) -> Iterator[Gateway]:
    with Gateway(engine.url, workers=2, slots=SLOTS) as process:
        started(process, 2)
        yield process


class TestOneGateway:
    def test_operators_see_one_gateway(self, gateway: Gateway, engine: StandIn) -> None:
        before = gateway.metrics()
        streams = Streams(gateway, SLOTS)
        try:
            per_worker = [len(list(proc(pid, "fd").iterdir())) for pid in workers_of(gateway)]
            assert len(per_worker) == 2
            listed = get_json(f"{gateway.admin_url}/api/calls?sort=-age&limit=3&offset=1")
            assert listed["total"] == listed["live"] == SLOTS and len(listed["calls"]) == 3
            ages = [row["age_s"] for row in listed["calls"]]
            assert ages == sorted(ages)

            def figures() -> tuple[int, int]:
                (backend,) = get_json(f"{gateway.admin_url}/api/backends")["backends"]
                return backend["in_flight"], backend["limit"]

            wait_until(lambda: figures() == (SLOTS, SLOTS), what="slots that are on their way to a worker to arrive")
            assert get_json(f"{gateway.admin_url}/api/overview")["live"] == SLOTS
            past = get_json(f"{gateway.admin_url}/api/history?seconds=600&by=tenant")
            assert past["length_s"] == 0 and past["bounds"] and isinstance(past["events"], list)
            for number in range(SLOTS):  # each is known to one worker
                row = get_json(f"{gateway.admin_url}/api/calls/stream-{number}")
                assert row["id"] == f"stream-{number}" and row["phase"] != "ended"
            (killed,) = admin(gateway, "DELETE", "/api/calls/stream-3")["killed"]
            assert killed["id"] == "stream-3" and killed["abort_sent"]
            rest = admin(gateway, "DELETE", "/api/calls?tenant=default")["killed"]
            assert {row["id"] for row in rest} == {f"stream-{n}" for n in range(SLOTS)} - {"stream-3"}
        finally:
            streams.close()
        engine.wait_idle()
        after = gateway.metrics()
        assert _killed(after) - _killed(before) == SLOTS and after["hangup_workers"] == 2
        report = get_json(f"{gateway.admin_url}/api/report?by=cause")
        assert {row["cause"]: row["calls"] for row in report["rows"]}["killed"] >= SLOTS

    def test_calls_are_spread_over_the_workers(self, gateway: Gateway) -> None:
        """A connection's worker is chosen by the kernel: of 40, none of two gets fewer than 4 in a billion tries."""
        clients = [Client(gateway.address) for _ in range(40)]
        try:
            wait_until(lambda: gateway.metrics()["hangup_connections"] >= 40)
            counts = [sum(1 for fd in proc(pid, "fd").iterdir() if _is_socket(fd)) for pid in workers_of(gateway)]
            assert len(counts) == 2 and min(counts) >= 4 + 4, counts  # 4 sockets are always open
        finally:
            for client in clients:
                client.sock.close()

    def test_what_is_not_there(self, gateway: Gateway) -> None:
        for path, status in (("/api/calls/none", 404), ("/api/calls?sort=x", 400), ("/api/report?by=x", 400), ("/api/x", 404)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                get_json(gateway.admin_url + path)
            with caught.value as error:
                assert error.code == status, path

    def test_an_engine_gets_no_more_calls_than_it_has_slots_and_all_slots_are_used(
        self, gateway: Gateway, engine: StandIn
    ) -> None:
        engine.wait_idle()
        urllib.request.urlopen(urllib.request.Request(f"{engine.url}/standin/forget_peaks", b"{}"), timeout=60).close()
        with Load(gateway, threads=3 * SLOTS) as load:
            wait_until(lambda: engine.stats()["running_peak"] == SLOTS, what="all slots in use")
            load.wait_for_more(100)
        assert engine.stats()["running_peak"] == SLOTS
        assert set(load.outcomes) == {"200"}

    def test_slots_follow_the_calls(self, gateway: Gateway, engine: StandIn) -> None:
        """All calls come over connections of one worker: it gets all the slots."""
        first = Client(gateway.address)
        clients = [first]
        try:
            while len(clients) < 60:  # about half of them are at the first one's worker
                clients.append(Client(gateway.address))
            streams = clients[: 3 * SLOTS]
            for client in streams:
                client.chat(stream=True, max_tokens=LONG)
            wait_until(lambda: engine.stats()["running"] == SLOTS, what="all slots in use")
        finally:
            for client in clients:
                client.sock.close()
        engine.wait_idle()

    def test_shares_of_engine_time_add_up_to_it(self, gateway: Gateway, engine: StandIn) -> None:
        """A second with calls of both workers is one second of the engine, not one of each worker."""

        def spent() -> tuple[int, float]:
            rows = get_json(f"{gateway.admin_url}/api/report?by=cause")["rows"]
            return sum(row["calls"] for row in rows), sum(row["engine_s"] for row in rows)

        engine.wait_idle()
        wait_until(lambda: not get_json(f"{gateway.admin_url}/api/overview")["live"])
        (calls, seconds), began = spent(), time.monotonic()
        streams = Streams(gateway, SLOTS, max_tokens=300)
        for client in streams.clients:
            client.read_until(b"[DONE]")
        took = time.monotonic() - began
        streams.close()
        wait_until(lambda: spent()[0] >= calls + SLOTS, what="the ledger")
        assert spent()[1] - seconds < 1.4 * took

    def test_a_drained_backend_is_drained_everywhere(self, gateway: Gateway, engine: StandIn) -> None:
        name = engine.url.removeprefix("http://")
        admin(gateway, "PUT", f"/api/backends/{name}/drain")
        try:
            wait_until(lambda: get_json(f"{gateway.admin_url}/api/backends")["backends"][0]["state"] == "drained, up")
            assert gateway.ready() == 503
        finally:
            admin(gateway, "DELETE", f"/api/backends/{name}/drain")
        assert gateway.ready() == 200


def _killed(metrics: dict[str, float]) -> float:
    return sum(
        count for name, count in metrics.items() if name.startswith("hangup_calls_total{") and 'outcome="killed"' in name
    )


def _is_socket(fd: Path) -> bool:
    with contextlib.suppress(OSError):
        return fd.readlink().name.startswith("socket:")
    return False


def test_a_worker_that_is_killed_is_replaced_and_its_calls_are_stopped() -> None:
    """On an engine that does not notice when a connection ends: only an abort by id stops a call there."""
    with engine_and_gateway(deaf_to="stream") as (engine, gateway):
        streams = Streams(gateway, 16, max_tokens=LONG)
        before = gateway.metrics()
        wait_until(lambda: engine.stats()["running"] == 16)
        for client in streams.clients:  # its worker has reported it ten times since
            for _ in range(100):
                client.read_until(b"\n\n")
        victim, other = workers_of(gateway)
        os.kill(victim, signal.SIGKILL)
        (died,) = wait_until(lambda: events(gateway, "worker_died"))
        assert died["pid"] == victim and 0 < died["calls"] < 16, "the kernel spreads 16 connections over both"
        wait_until(lambda: engine.stats()["aborted"] == died["calls"], what="aborts of the calls that it left")
        wait_until(lambda: len(events(gateway, "left_call_stopped")) == died["calls"], what="their log lines")
        stopped = events(gateway, "left_call_stopped")
        assert len(stopped) == died["calls"] and all(row["abort_sent"] for row in stopped)
        started(gateway, 3)
        alive = 0
        for client in streams.clients:
            client.buffer = b""
            alive += client._more() and client._more()
        assert alive == 16 - died["calls"], "the other worker's streams go on"
        assert other in workers_of(gateway) and len(workers_of(gateway)) == 2
        assert engine.stats()["aborted"] == died["calls"], "no innocent call was aborted"
        streams.close()
        with Client(gateway.address) as client:
            client.chat(max_tokens=3)
            assert client.read_answer().status == 200
        after = gateway.metrics()
        fallen = [name for name in before if name.endswith("_total") and after.get(name, 0) < before[name]]
        assert fallen == [] and after["hangup_worker_restarts_total"] == 1


def test_a_stopped_worker_costs_no_call_and_is_replaced() -> None:
    with engine_and_gateway(worker_silence_s=8) as (_, gateway):
        victim = workers_of(gateway)[0]
        before = gateway.metrics()
        os.kill(victim, signal.SIGSTOP)
        with contextlib.ExitStack() as stack:
            # About ten of them are in the stopped worker's queue.
            clients = [stack.enter_context(Client(gateway.address)) for _ in range(20)]
            for client in clients:
                client.chat(max_tokens=3)
            assert [client.read_answer().status for client in clients] == [200] * 20
        without: dict[str, float] = wait_until(lambda: found if (found := gateway.metrics())["hangup_workers"] == 1 else {})
        assert [name for name in before if name.endswith("_total") and without[name] < before[name]] == []
        wait_until(lambda: victim in [row["pid"] for row in events(gateway, "worker_hangs")])
        started(gateway, 3)
        assert victim not in workers_of(gateway) and gateway.ready() == 200


def test_no_call_is_refused_while_workers_are_reloaded_and_replaced() -> None:
    with StandIn(slots=32, prefill_s=0.001, token_s=0.001) as engine:
        config = f'slots = 32\n[[backend]]\nurl = "{engine.url}"\nname = "NAME"\n'
        with Gateway(config=config.replace("NAME", "old"), workers=2) as gateway, Load(gateway) as load:
            assert gateway.config_path is not None
            gateway.config_path.write_text("nonsense = 1\n")
            gateway.signal(signal.SIGHUP)
            gateway.find_line("not reloaded")
            gateway.config_path.write_text(config.replace("NAME", "new"))
            gateway.signal(signal.SIGHUP)
            gateway.find_line("configuration reloaded")
            wait_until(lambda: len(events(gateway, "config_reloaded")) == 2)
            assert [row["name"] for row in get_json(f"{gateway.admin_url}/api/backends")["backends"]] == ["new"]
            load.wait_for_more()
            before = workers_of(gateway)
            gateway.signal(signal.SIGUSR2)
            wait_until(lambda: events(gateway, "workers_rolled"))
            wait_until(lambda: not set(before) & set(workers_of(gateway)), what="the end of the old workers")
            load.wait_for_more()
            os.kill(workers_of(gateway)[0], signal.SIGTERM)  # by hand: it drains, and another takes its place
            started(gateway, 5)
            load.wait_for_more()
        assert set(load.outcomes) == {"200"}, load.outcomes
        assert not events(gateway, "worker_died")


def test_a_signal_drains_all_workers_and_a_second_one_ends_it() -> None:
    with engine_and_gateway(drain_s=600) as (engine, gateway):
        short, long = Streams(gateway, 4, max_tokens=100), Streams(gateway, 4, max_tokens=LONG)
        pids = workers_of(gateway)
        gateway.signal(signal.SIGTERM)
        for client in short.clients:
            assert b"[DONE]" in client.read_until(b"[DONE]")
        assert gateway.popen.poll() is None and gateway.ready() == 503
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0
        short.close()
        long.close()
        assert all(not proc(pid).exists() for pid in pids) and not events(gateway, "worker_died")
        engine.wait_idle()


def _heads(stack: contextlib.ExitStack, gateway: Gateway, key: str, count: int) -> Counter[int]:
    """Begin streams that go on; return how many got which status."""
    clients = [stack.enter_context(Client(gateway.address)) for _ in range(count)]
    for client in clients:
        client.chat({"Authorization": f"Bearer {key}"}, stream=True, max_tokens=LONG)
    return Counter(client.read_head()[0] for client in clients)


def test_a_tenants_quota_is_one_for_all_workers() -> None:
    """Never more calls than `concurrency_max`, and no call is refused while part of it is unused."""
    key = "k" * 20
    digest = hashlib.sha256(key.encode()).hexdigest()
    with StandIn(slots=32, prefill_s=0.01, token_s=0.01, answer_tokens=LONG) as engine:
        config = f'[[backend]]\nurl = "{engine.url}"\n[[tenant]]\nname = "t"\nconcurrency_max = 4\nkey_sha256 = ["{digest}"]\n'
        with Gateway(config=config, workers=2) as gateway:
            for _ in range(3):
                with contextlib.ExitStack() as stack:
                    served = _heads(stack, gateway, key, 12)[200]
                    assert served <= 4
                    while served < 4:  # a worker that got no answer in two seconds decided with what it had
                        heads = _heads(stack, gateway, key, 2)
                        served += heads[200]
                    assert served == 4 and _heads(stack, gateway, key, 4) == {429: 4}
                engine.wait_idle()
                wait_until(lambda: not get_json(f"{gateway.admin_url}/api/calls")["live"])


def test_tenants_get_their_shares_of_the_whole_whichever_workers_have_their_calls() -> None:
    """One worker has the calls of one tenant, the other those of another with three times its weight."""
    keys = {"small": "s" * 20, "large": "l" * 20}
    config = "".join(
        f'[[tenant]]\nname = "{name}"\nweight = {3 if name == "large" else 1}\n'
        f'key_sha256 = ["{hashlib.sha256(key.encode()).hexdigest()}"]\n'
        for name, key in keys.items()
    )
    with StandIn(slots=64, prefill_s=0.01, token_s=0.02) as engine, contextlib.ExitStack() as stack:
        config += f'[[backend]]\nurl = "{engine.url}"\nslots = {SLOTS}\n'
        gateway = stack.enter_context(Gateway(config=config, workers=2))
        started(gateway, 2)
        one, other = workers_of(gateway)
        clients: dict[str, list[Client]] = {"small": [], "large": []}
        while min(map(len, clients.values())) < 2 * SLOTS:  # a connection stays with its worker
            client = stack.enter_context(Client(gateway.address))
            worker = wait_until(lambda c=client: _worker_of(c, (one, other)), what="its worker")  # type: ignore[misc]
            clients["small" if worker == one else "large"].append(client)
        served, over = Counter[str](), threading.Event()

        def call(name: str, client: Client) -> None:
            while not over.is_set():
                client.chat({"Authorization": f"Bearer {keys[name]}"}, max_tokens=10)
                served[f"{name} {client.read_answer().status}"] += 1

        threads = [
            threading.Thread(target=call, args=(name, client), daemon=True)
            for name, of in clients.items()
            for client in of[: 2 * SLOTS]
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: served.total() >= 100, what="100 calls")
        before = served.copy()
        wait_until(lambda: served.total() >= before.total() + 300, what="300 calls")
        counted = served - before
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert 2 <= counted["large 200"] / counted["small 200"] <= 4.5, "each worker would use half of the slots"
        assert set(served) == {"small 200", "large 200"} and engine.stats()["running_peak"] <= SLOTS


def _worker_of(client: Client, workers: tuple[int, ...]) -> int | None:
    """Return the worker that has accepted a connection."""
    port, to = client.sock.getsockname()[1], client.sock.getpeername()[1]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[1].endswith(f":{to:04X}") and row[2].endswith(f":{port:04X}")}
    for pid in workers:
        for fd in proc(pid, "fd").iterdir():
            with contextlib.suppress(OSError):  # it is closed by now
                if fd.readlink().name.removeprefix("socket:[").removesuffix("]") in inodes:
                    return pid
    return None


def test_tokens_per_minute_are_of_all_workers() -> None:
    key = "k" * 20
    digest = hashlib.sha256(key.encode()).hexdigest()
    with StandIn(slots=32, prefill_s=0.01, token_s=0.01, answer_tokens=LONG) as engine:
        config = (
            f'[[backend]]\nurl = "{engine.url}"\n[[tenant]]\nname = "t"\ntokens_per_minute = 600\nkey_sha256 = ["{digest}"]\n'
        )
        with Gateway(config=config, workers=2) as gateway:
            started(gateway, 2)
            began, served, refused = time.monotonic(), 0, 0
            while refused < 8:  # both workers refuse
                with Client(gateway.address) as client:
                    client.chat({"Authorization": f"Bearer {key}"}, max_tokens=50)
                    status = client.read_answer().status
                assert status in (200, 429)
                served += status == 200
                refused += status == 429
            refilled = (time.monotonic() - began) * 600 / 60
            assert 8 <= served <= (600 + refilled) / 50 + 3, "each worker's own quota would be twice as much"


def test_an_engine_that_works_for_another_worker_is_not_stuck() -> None:
    """vLLM counts no tokens for embeddings, so its figures stand still. The worker without calls must not take it for stuck."""
    with (
        StandIn(like="vllm", embed_s=0.3) as engine,
        Gateway(engine.url, workers=2, wedge_s=5, health_interval_s=0.5) as gateway,
    ):
        with Client(gateway.address) as client:
            for _ in range(40):  # one connection, one worker; 12 s, and no answer takes wedge_s
                client.post("/v1/embeddings", {"model": "m", "input": "x"})
                assert client.read_answer().status == 200
        (backend,) = get_json(f"{gateway.admin_url}/api/backends")["backends"]
        assert backend["ladder"] == "healthy" and not events(gateway, "ladder_step_taken")


def test_workers_end_with_their_supervisor() -> None:
    with StandIn() as engine, Gateway(engine.url, workers=2) as gateway:
        pids = workers_of(gateway)
        gateway.popen.kill()
        wait_until(lambda: all(not proc(pid).exists() for pid in pids), what="the end of the workers")
        assert len(events(gateway, "supervisor_gone")) == 2


def test_a_port_in_use_and_a_worker_that_cannot_start_are_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ("--admin-port", "0", "--workers", "2", "--upstream", "http://127.0.0.1:9")
        with Process("serve", "--port", port, *flags) as process:
            assert process.wait() == 1 and "cannot listen" in process.stderr_lines[0]
        with Process("serve", "--port", "0", *flags, "--jobs", "/dev/null/x") as process:
            assert process.wait() == 1 and "/dev/null" in process.stderr_lines[0], process.stderr_lines
