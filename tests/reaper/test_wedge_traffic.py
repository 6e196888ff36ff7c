"""An engine wedges during traffic; work of an earlier gateway; and slots that have changed."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.processes import Gateway, StandIn, reserved_port
from support.raw import Answer, Client, ask
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
SHORT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
LONG: dict[str, Any] = {"max_tokens": 30_000, "ignore_eos": True}
SLOW: dict[str, Any] = {"prefill_s": 0.02, "token_s": 0.02, "answer_tokens": 30_000}
QUICK: dict[str, Any] = {"release_grace_s": 0.5, "abort_backoff_s": 0.1, "health_interval_s": 0.5, "orphans_s": 1.5}


def events(gateway: Gateway, name: str) -> list[dict[str, Any]]:
    return [row for row in gateway.log() if row.get("event") == name]


def steps(gateway: Gateway) -> list[str]:
    return [row["step"] for row in events(gateway, "ladder_step_taken")]


def known(gateway: Gateway) -> None:
    wait_until(lambda: any("recognised" in str(row.get("change")) for row in gateway.log()), what="recognition")


def stream(gateway: Gateway, id: str) -> Client:
    client = Client(gateway.address)
    client.chat({"X-Request-Id": id}, stream=True, **LONG)
    client.read_until(b"data:")
    return client


def released(gateway: Gateway) -> float:
    """Return the abandoned calls that the engine has shown to be gone."""
    names = [name for name in gateway.metrics() if name.startswith("hangup_releases_total") and "verified" in name]
    return sum(gateway.metrics()[name] for name in names)


def drain(gateway: Gateway, name: str, method: str) -> None:
    request = urllib.request.Request(f"{gateway.admin_url}/api/backends/{name}/drain", headers={"x-hangup": "1"}, method=method)
    urllib.request.urlopen(request, timeout=60).close()


def behave(port: int, **values: Any) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/standin/behave", json.dumps(values).encode())
    urllib.request.urlopen(request, timeout=60).close()


@pytest.mark.parametrize("like", ["llamacpp", "vllm", "sglang", "lmdeploy", "tensorrt_llm", "llamacpp, silent"])
def test_the_only_backend_is_back_within_seconds_though_calls_keep_coming(like: str, tmp_path: Path) -> None:
    """A call arrives every second, and all limits have their defaults. Calls that reached the wedged engine get an error
    that says so."""
    like, _, silent = like.partition(", ")  # an engine that is wedged may not even say what it runs
    command = f"{sys.executable} -m hangup standin --port {{port}} --like {like} --wedge --token-s 0.01 --slots 2"
    config = f'[[backend]]\nurl = "http://127.0.0.1:PORT"\nname = "own"\nspawn = "{command}"\n'
    config += f'spawn_log = "{tmp_path / "engine.log"}"\n'
    bound_s = 60  # `first_token_s`, which it must not wait for, is 120; the bench says how many seconds it takes
    with (
        reserved_port() as port,
        Gateway(config=config.replace("PORT", str(port))) as gateway,
        ThreadPoolExecutor(80) as pool,
    ):
        known(gateway)
        client = stream(gateway, "wedge")
        if silent:
            behave(port, status_hangs=True)
        left_at = time.monotonic()
        client.fin()
        time.sleep(1.5 if like == "tensorrt_llm" else 0.0)  # it looks after its connections once a second
        futures: list[Future[tuple[float, Answer]]] = []
        while time.monotonic() - left_at < bound_s and not any(f.done() and f.result()[1].status == 200 for f in futures):
            futures.append(pool.submit(lambda: (time.monotonic(), ask(gateway.address, CHAT, SHORT))))
            time.sleep(1)
        answers = [future.result(120)[1] for future in futures]
        assert any(answer.status == 200 for answer in answers), [answer.status for answer in answers]
        assert steps(gateway)[-3:] == ["restarting", "canary", "healthy"]
        failed = [answer for answer in answers if answer.status != 200]
        assert failed and all(answer.status == 503 for answer in failed), [(a.status, a.body) for a in failed]
        assert any(answer.headers.get("x-hangup-reason") == "engine_wedged" for answer in failed)


def test_a_call_that_moves_is_waited_for() -> None:
    """A deaf engine is not wedged: its live calls still get their answers."""
    with StandIn(deaf=True, slots=4, **SLOW) as engine:
        config = f'[[backend]]\nurl = "{engine.url}"\nrestart_command = "/bin/true"\n'
        with Gateway(config=config, **QUICK, still_s=0.5) as gateway:
            known(gateway)
            lives = stream(gateway, "lives")
            stream(gateway, "left").fin()
            wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")
            until = time.monotonic() + 2
            while time.monotonic() < until:
                assert lives.read_some()
            assert "restarting" not in steps(gateway)
            lives.fin()
            wait_until(lambda: "restarting" in steps(gateway), what="the restart")


@pytest.mark.parametrize(("has_head", "streams"), [(False, False), (True, False), (True, True)], ids=["sent", "head", "stream"])
def test_a_call_that_has_not_begun_is_served_elsewhere(has_head: bool, streams: bool) -> None:
    """It was sent to the engine before that was known to be wedged. A response head, even if the client has it, is not the
    beginning of an answer."""
    with StandIn(wedge=True, slots=4, **SLOW) as stuck, StandIn(slots=4, **SLOW) as good:
        stuck.behave(ignore_stream=not has_head)
        config = "".join(
            f'[[backend]]\nurl = "{engine.url}"\nname = "{name}"\n' for engine, name in ((stuck, "stuck"), (good, "good"))
        )
        with Gateway(config=config, **QUICK, still_s=1.0, prefill_grace_s=0.5) as gateway, ThreadPoolExecutor(4) as pool:
            wait_until(lambda: sum("recognised" in str(row.get("change")) for row in gateway.log()) == 2, what="recognition")
            drain(gateway, "good", "PUT")
            first = Client(gateway.address)
            first.chat({"X-Request-Id": "left"}, stream=True, **LONG)
            wait_until(lambda: stuck.stats()["running"] == 1, what="the call in the engine that will be wedged")
            first.fin()
            gateway.call_log("left")
            waits = pool.submit(ask, gateway.address, CHAT, {**SHORT, "stream": streams}, {"X-Request-Id": "moved"})
            wait_until(lambda: stuck.stats()["running"] + stuck.stats()["waiting"] >= 2, what="a call in the wedged engine")
            drain(gateway, "good", "DELETE")
            answer = waits.result(120)
            row = gateway.call_log("moved")
            assert (answer.status, row["backend"], row["attempts"], row["outcome"]) == (200, "good", 2, "completed")
            if streams:
                assert answer.body.count(b'"role"') == 1 and answer.body.endswith(b"data: [DONE]\n\n"), answer.body
            else:
                assert answer.json()["usage"]["completion_tokens"] == 2


def test_a_call_whose_client_has_a_part_of_the_answer_is_told() -> None:
    """A second beginning after the first would not be a valid answer."""
    with StandIn(wedge=True, slots=4, **SLOW) as stuck, StandIn(slots=4, **SLOW) as good:
        config = "".join(
            f'[[backend]]\nurl = "{engine.url}"\nname = "{name}"\n' for engine, name in ((stuck, "stuck"), (good, "good"))
        )
        with Gateway(config=config, **QUICK, still_s=1.0, prefill_grace_s=0.5) as gateway:
            wait_until(lambda: sum("recognised" in str(row.get("change")) for row in gateway.log()) == 2, what="recognition")
            drain(gateway, "good", "PUT")
            begun = stream(gateway, "begun")
            stream(gateway, "left").fin()
            drain(gateway, "good", "DELETE")
            begun.read_until(b"engine_wedged")
            begun.fin()
            row = gateway.call_log("begun")
            assert (row["backend"], row["attempts"], row["cause"]) == ("stuck", 1, "engine_wedged")


def test_slots_at_work_for_a_former_gateway_get_no_calls_and_are_dealt_with() -> None:
    with StandIn(like="llamacpp", deaf=True, slots=2, **SLOW) as engine:
        with Gateway(engine.url) as former:
            known(former)
            clients = [stream(former, f"former-{at}") for at in range(2)]
        with Gateway(engine.url, **QUICK | {"orphans_s": 4.0, "health_interval_s": 20.0}, first_token_s=20) as gateway:
            known(gateway)
            began = time.monotonic()
            wait_until(lambda: gateway.ready() == 503, what="the word that no slot is free")
            assert time.monotonic() - began < 15, "it came with the next look, and not from the start"
            assert ask(gateway.address, CHAT, SHORT).status == 503, "in a slot that is taken, 504 after first_token_s"
            wait_until(lambda: "quarantined" in steps(gateway), what="the quarantine")
            assert "before this gateway started" in events(gateway, "ladder_step_taken")[-1]["reason"]
        for client in clients:
            client.fin()


@pytest.mark.parametrize("like", ["", "sglang"])
def test_an_engine_full_of_a_former_gateways_work_is_restarted(like: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with StandIn(like=like, deaf=True, slots=4, **SLOW) as engine:
        with Gateway(engine.url) as former:
            known(former)
            client = stream(former, "former")
        config = f'[[backend]]\nurl = "{engine.url}"\nrestart_command = "/usr/bin/touch {note}"\n'
        with Gateway(config=config, **QUICK) as gateway:
            known(gateway)
            for _ in range(8):  # traffic of ours changes nothing about that
                assert ask(gateway.address, CHAT, SHORT).status in (200, 503)
                time.sleep(0.2)
            wait_until(note.exists, what="the restart")
        client.fin()


def test_another_clients_work_is_left_alone() -> None:
    """The work appeared while hangup watched, so another client uses the engine without hangup."""
    with StandIn(slots=4, **SLOW) as engine:
        config = f'[[backend]]\nurl = "{engine.url}"\nrestart_command = "/bin/false"\n'
        with Gateway(config=config, **QUICK) as gateway, Client(("127.0.0.1", engine.port)) as other:
            known(gateway)
            time.sleep(1.5)  # no call of ours before: it could be taken for one that was released too early
            other.chat(stream=True, **LONG)
            other.read_until(b"data:")
            wait_until(lambda: events(gateway, "orphans_found"), what="orphans in the log")
            until = time.monotonic() + 3
            while time.monotonic() < until:
                assert other.read_some()
            assert not steps(gateway)


def test_an_engine_that_comes_back_with_fewer_slots_gets_no_calls_for_those_it_lost() -> None:
    with (
        reserved_port() as port,
        StandIn(port, like="llamacpp", slots=4, **SLOW) as engine,
        Gateway(engine.url, **QUICK) as gateway,
    ):
        known(gateway)
        engine.signal(signal.SIGKILL)
        engine.wait()
        with StandIn(port, like="llamacpp", slots=1, **SLOW) as smaller:
            wait_until(lambda: sum("recognised" in str(row.get("change")) for row in gateway.log()) == 2, what="another look")
            assert ask(gateway.address, CHAT, SHORT).status == 200
            pinned = [json.loads(row["body"])["id_slot"] for row in smaller.seen() if row["path"] == CHAT]
            assert pinned and set(pinned) == {0}


class Vllm(BaseHTTPRequestHandler):
    """Counts each text of an embeddings call as a request, and none of them as tokens, as vLLM does."""

    protocol_version = "HTTP/1.1"
    running = 0
    lock = threading.Lock()

    def log_message(self, *_: Any) -> None: ...

    def _answer(self, body: bytes, kind: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(b'{"object":"list","data":[{"id":"m","owned_by":"vllm","max_model_len":4096}]}')
        elif self.path == "/metrics":
            rows = f"vllm:num_requests_running {Vllm.running}\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total 0\n"
            self._answer(rows.encode(), "text/plain")
        else:
            self._answer(b"{}", status=200 if self.path == "/health" else 404)

    def do_POST(self) -> None:
        count = len(json.loads(self.rfile.read(int(self.headers["content-length"])))["input"])
        with Vllm.lock:
            Vllm.running += count
        time.sleep(0.4)
        with Vllm.lock:
            Vllm.running -= count
        with contextlib.suppress(OSError):
            self._answer(b'{"data":[]}')


def test_embeddings_convict_no_healthy_engine() -> None:
    """There are neither zombies, although the engine counts texts and not calls, nor a wedge, although it counts no tokens
    for them."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vllm)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings: dict[str, Any] = {"release_grace_s": 0.3, "health_interval_s": 0.5, "wedge_s": 2.0}
    with Gateway(f"http://127.0.0.1:{server.server_port}", **settings) as gateway, ThreadPoolExecutor(3) as pool:
        known(gateway)
        until = time.monotonic() + 9  # vLLM's figures may be six seconds old

        def embed() -> set[int]:
            statuses = set()
            while time.monotonic() < until:
                statuses.add(ask(gateway.address, "/v1/embeddings", {"input": ["a"] * 32}).status)
            return statuses

        busy = [pool.submit(embed) for _ in range(2)]
        with Client(gateway.address) as leaves:
            leaves.post("/v1/embeddings", {"input": ["a"] * 4})
            time.sleep(0.1)
        assert [one.result(120) for one in busy] == [{200}, {200}]
        assert not steps(gateway) and not events(gateway, "zombie_found") and not events(gateway, "orphans_found")
    server.shutdown()
    server.server_close()
