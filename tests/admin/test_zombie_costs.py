"""The cost of zombies, recorded once its owner is known; and the alarm, on every engine that reports what it runs."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from admin.test_api import admin
from hangup.core import zombie_shares
from hangup.core.account import FREE, Price
from hangup.core.reaper import PendingStop
from support.processes import EngineProcess, Gateway, StandIn
from support.raw import Client, ask
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
SHORT: dict[str, Any] = {"messages": [], "max_tokens": 20, "model": "small"}


def known(gateway: Gateway) -> None:
    wait_until(lambda: any("recognised" in str(row.get("change")) for row in gateway.log()), what="recognition")


def leave(gateway: Gateway, id: str, **fields: Any) -> None:
    with Client(gateway.address) as client:
        client.chat({"X-Request-Id": id}, stream=True, max_tokens=30_000, ignore_eos=True, **fields)
        client.read_until(b'"content":" ')


def rows(gateway: Gateway, by: str) -> dict[str, dict[str, Any]]:
    return {row[by]: row for row in admin(gateway, "GET", f"/api/report?by={by}")[1]["rows"]}


def adds_up(gateway: Gateway) -> dict[str, Any]:
    """Return the report if its tokens add up to the engine's count, within a hundredth; else None."""
    report: dict[str, Any] = admin(gateway, "GET", "/api/report?by=cause")[1]
    gpu = report["engines"]["gpu"]
    return report if gpu["computed"] > 1000 and abs(gpu["difference"]) <= gpu["computed"] / 100 else {}


def test_all_fates_add_up_to_the_engines_own_count_while_it_is_deaf_and_under_traffic() -> None:
    with StandIn(slots=32, deaf=True, token_s=0.005, prefill_s=0.01, answer_tokens=30_000) as engine:
        config = f"""
        [limits]
        counters_interval_s = 0.2
        release_grace_s = 0.3
        [[backend]]
        url = "{engine.url}"
        name = "gpu"
        slots = 32
        quarantine = false
        price_per_hour = 3600
        price_per_million_tokens = 1000000
        """
        with Gateway(config=config) as gateway, ThreadPoolExecutor(4) as pool:
            known(gateway)
            wait_until(lambda: admin(gateway, "GET", "/api/backends")[1]["backends"][0]["tokens_computed"] == 0)
            for _ in range(30):  # from these it learns how long answers are, and what an end may save
                assert ask(gateway.address, CHAT, SHORT).status == 200
            until = time.monotonic() + 4

            def stay() -> None:
                while time.monotonic() < until:
                    assert ask(gateway.address, CHAT, SHORT | {"stream": True}).complete

            staying = [pool.submit(stay) for _ in range(4)]
            for at in range(4):
                leave(gateway, f"left-{at}", model="large")
            wait_until(lambda: len([r for r in gateway.log() if r["event"] == "zombie_found"]) == 4, what="four zombies")
            for one in staying:
                one.result(120)
            wait_until(lambda: rows(gateway, "cause")["zombie"]["tokens_wasted"] > 1000, what="what they compute for nobody")
            report = wait_until(lambda: adds_up(gateway), what="books that agree with the engine, all the while it runs")
            assert engine.stats()["running"] == 4, "they still run"
            zombie = rows(gateway, "cause")["zombie"]
            assert zombie["money_wasted"] >= zombie["tokens_wasted"]
            large = rows(gateway, "model")["large"]
            assert (
                large["tokens_wasted"] >= zombie["tokens_wasted"] and rows(gateway, "tenant")["default"]["money_wasted"] > 1000
            )
            assert report["total"]["tokens_saved"] == 0 and abs(report["total"]["money_saved"]) < 1e-6, "nothing was stopped"
            wait_until(lambda: rows(gateway, "cause")["zombie"]["engine_wasted_s"] > 0.1, what="engine time of their own")

            def stories() -> list[dict[str, Any]]:
                return list(admin(gateway, "GET", "/api/zombies")[1]["zombies"])

            wait_until(lambda: all(story["tokens_since"] > 100 for story in stories()), what="tokens of each")
            assert {story["tenant"] for story in stories()} == {"default"} and len(stories()) == 4
            # Which of them had how many tokens, nobody knows: only the sum is the engine's.
            assert not any(story["tokens_exact"] for story in stories())
            assert rows(gateway, "cause")["zombie"]["tokens_estimated"] > 1000


def test_the_line_of_a_call_tells_what_its_engine_did_after_the_hang_up() -> None:
    """Our own engine reports it to the last token; at least one token of each call was computed and never delivered."""
    with EngineProcess(slots=8) as engine, Gateway(engine.url, engine_receive_bytes_max=4096) as gateway:
        known(gateway)
        for at in range(4):
            with Client(gateway.address, receive_buffer=2048) as client:
                body = {"prompt": "ROMEO:", "stream": True, "max_tokens": 1000, "ignore_eos": True, "logprobs": 20}
                client.post("/v1/completions", body, {"X-Request-Id": f"left-{at}"})
                client.read_until(b"data:")
            engine.wait_for(running=0)
        lines = [gateway.call_log(f"left-{at}") for at in range(4)]
        assert {line["release"] for line in lines} == {"verified"} and all(line["tokens_after_exact"] for line in lines)
        counted = sum(line["tokens_out"] + line["tokens_after_hangup"] for line in lines)
        assert counted == engine.counters()["tokens"] + engine.counters()["tokens_dropped"]


def test_a_line_waits_no_longer_than_it_may() -> None:
    with StandIn(like="llamacpp", deaf=True, slots=2, token_s=0.01, answer_tokens=30_000) as engine:
        with Gateway(engine.url, log_wait_s=0.5) as gateway:
            known(gateway)
            leave(gateway, "left")
            line = gateway.call_log("left")
            assert line["release"] in ("pending", "zombie") and line["tokens_after_exact"]
            assert line["tokens_after_hangup"] > 0, "its slot shows it"
        with Gateway(engine.url, log_wait_s=0) as gateway:
            known(gateway)
            leave(gateway, "at-once")
            assert gateway.call_log("at-once")["tokens_after_hangup"] is None


def test_shares_add_up_and_follow_the_slots_where_they_are_known() -> None:
    owners = [PendingStop("a", 0.0), PendingStop("b", 5.0)]
    parts = zombie_shares.share(owners, 100, 3.0, 0.0, 10.0)
    assert not any(part.exact for part in parts) and zombie_shares.entry("gpu", parts[0], FREE).account.tokens_estimated == 67
    assert [part.tokens for part in parts] == [67, 33] and sum(part.engine_s for part in parts) == pytest.approx(3.0)
    owners[1].tokens_now = 40
    assert [part.tokens for part in zombie_shares.share(owners, 100, 0.0, 0.0, 10.0)] == [0, 100]
    assert [part.tokens for part in zombie_shares.share(owners, None, 0.0, 0.0, 10.0)] == [0, 40]
    assert all(part.exact for part in zombie_shares.share(owners, 100, 0.0, 0.0, 10.0)), "the slots tell"
    assert zombie_shares.share(owners[:1], 100, 0.0, 0.0, 10.0)[0].exact, "who else could it be"
    assert zombie_shares.share([], 100, 3.0, 0.0, 10.0) == []
    entry = zombie_shares.entry("gpu", parts[0], Price(per_hour=3600, per_million_tokens=1e6))
    assert entry.account.money_wasted == entry.account.money == pytest.approx(67 + 2.0)


def test_what_others_do_to_a_shared_engine_is_not_in_our_books_and_raises_no_alarm() -> None:
    with StandIn(slots=8, token_s=0.002, answer_tokens=2000) as engine:
        config = f"""
        [limits]
        counters_interval_s = 0.2
        divergence_window_s = 1
        divergence_hold_s = 0.5
        [[backend]]
        url = "{engine.url}"
        shared = true
        """
        with Gateway(config=config) as gateway:
            known(gateway)
            assert ask(gateway.address, CHAT, SHORT).status == 200
            assert ask(("127.0.0.1", engine.port), CHAT, SHORT | {"max_tokens": 2000}).status == 200
            assert ask(gateway.address, CHAT, SHORT).status == 200
            assert "zombie" not in rows(gateway, "cause")
            assert not [row for row in gateway.log() if row["event"] == "divergence_alarm_changed"]


ALARM: dict[str, Any] = {"counters_interval_s": 0.2, "divergence_window_s": 2, "divergence_hold_s": 1, "health_interval_s": 1}


@pytest.mark.parametrize("fault", ["deaf", "wedge"])
@pytest.mark.parametrize("like", ["vllm", "sglang", "llamacpp", "tensorrt_llm", "lmdeploy", "tgi"])
def test_every_engine_that_tells_what_it_runs_can_raise_the_alarm(like: str, fault: str) -> None:
    behaviour: dict[str, Any] = {fault: True}
    with (
        StandIn(like=like, slots=8, token_s=0.01, prefill_s=0.01, answer_tokens=30_000, **behaviour) as engine,
        Gateway(engine.url, **ALARM) as gateway,
    ):
        known(gateway)
        leave(gateway, "left")
        raised = wait_until(
            lambda: [row for row in gateway.log() if row["event"] == "divergence_alarm_changed"], what="the alarm"
        )
        assert raised[0]["state"] == "raised" and raised[0]["suspects"]["calls"][0]["id"] == "left"


@pytest.mark.parametrize("like", ["vllm", "sglang", "llamacpp", "lmdeploy"])
def test_no_healthy_engine_raises_it(like: str) -> None:
    with (
        StandIn(like=like, slots=8, token_s=0.01, prefill_s=0.01, answer_tokens=200) as engine,
        Gateway(engine.url, **ALARM) as gateway,
    ):
        known(gateway)
        until = time.monotonic() + 6
        while time.monotonic() < until:
            leave(gateway, "left")
            assert ask(gateway.address, CHAT, SHORT).status == 200
        assert not [row for row in gateway.log() if row["event"] == "divergence_alarm_changed"]


class PlainVllm(BaseHTTPRequestHandler):
    """vLLM without its development mode: there is no abort."""

    protocol_version = "HTTP/1.1"
    posts: list[str] = []

    def log_message(self, *_: Any) -> None: ...

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}).encode())
        else:
            self._answer(b"{}", 200 if self.path == "/health" else 404)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        PlainVllm.posts.append(self.path)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        event = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" x"}}]}\n\n'
        try:
            while True:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
                time.sleep(0.02)
        except OSError:
            self.close_connection = True


def test_abort_sent_is_what_was_sent() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), PlainVllm)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Gateway(f"http://127.0.0.1:{server.server_port}") as gateway, Client(gateway.address) as client:
        known(gateway)
        client.chat({"X-Request-Id": "k"}, stream=True)
        client.read_until(b"data:")
        (killed,) = admin(gateway, "DELETE", "/api/calls/k")[1]["killed"]
        assert killed["connection_cut"] and not killed["abort_sent"]
        assert PlainVllm.posts == [CHAT]
    server.shutdown()
    server.server_close()
