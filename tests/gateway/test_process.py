"""The process: ids, log lines, admin port, drain and reload (case 25)."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

import pytest

from support.processes import HANGUP, Gateway, StandIn, elapsed, gateway_and_engine
from support.raw import Client, ask
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
LONG: dict[str, Any] = {"max_tokens": 20_000, "ignore_eos": True}


class TestTrace:
    @pytest.mark.parametrize("id", ["abc", "a.b-c:d_e", "0" * 128])
    def test_the_clients_id(self, gateway: Gateway, engine: StandIn, id: str) -> None:
        got = ask(gateway.address, CHAT, {"messages": [], "max_tokens": 1}, {"X-Request-Id": id})
        assert got.headers["x-request-id"] == id
        row = gateway.call_log(id)
        assert row["outcome"] == "completed"
        assert engine.last_name() == {"X-Request-Id": row["engine_id"]}

    @pytest.mark.parametrize("id", ["", "a b", "é", "a/b", "<x>", "0" * 129, "-a", "a,b"])
    def test_ours_where_theirs_is_not_well_formed(self, gateway: Gateway, id: str) -> None:
        got = ask(gateway.address, CHAT, {"messages": [], "max_tokens": 1}, {"X-Request-Id": id})
        ours = got.headers["x-request-id"]
        assert ours.startswith("hu-")
        assert len(ours) == 27

    def test_two_live_calls_never_share_an_id(self, gateway: Gateway, engine: StandIn) -> None:
        with Client(gateway.address) as one, Client(gateway.address) as two:
            for client in (one, two):
                client.chat({"X-Request-Id": "twin"}, stream=True, max_tokens=50)
            ids = {client.read_answer().headers["x-request-id"] for client in (one, two)}
            assert len(ids) == 2
            assert "twin" in ids

    def test_traceparent(self, gateway: Gateway, engine: StandIn) -> None:
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        got = ask(gateway.address, CHAT, {"messages": []}, {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
        assert engine.seen()[-1]["headers"]["traceparent"] == f"00-{trace}-00f067aa0ba902b7-01"
        assert gateway.call_log(got.headers["x-request-id"])["trace_id"] == trace

    def test_log_line(self, gateway: Gateway) -> None:
        ask(gateway.address, CHAT, {"messages": [], "max_tokens": 5, "model": "m"}, {"X-Request-Id": "line"})
        row = gateway.call_log("line")
        assert row["tenant"] == "default"
        assert row["model"] == "m"
        assert row["client"] == "127.0.0.1"
        assert row["route"] == "openai.chat"
        assert row["backend"].startswith("127.0.0.1:")
        assert (row["outcome"], row["cause"], row["status"]) == ("completed", "completed", 200)
        assert (row["tokens_out"], row["tokens_in"], row["tokens_after_hangup"]) == (5, 1, 0)
        assert 0 <= row["received_s"] <= row["sent_s"] <= row["first_byte_s"] <= row["first_token_s"] <= row["total_s"]

    def test_one_line_per_call(self, gateway: Gateway) -> None:
        for index in range(20):
            ask(gateway.address, CHAT, {"messages": [], "max_tokens": 1}, {"X-Request-Id": f"once-{index}"})
        gateway.call_log("once-19")
        ids = [row["id"] for row in gateway.log() if row["event"] == "call_ended"]
        assert len(ids) == len(set(ids))


class TestAdmin:
    def test_pages(self, gateway: Gateway) -> None:
        for path, text in (("/healthz", "ok"), ("/readyz", "ready")):
            with urllib.request.urlopen(gateway.admin_url + path, timeout=60) as answer:
                assert answer.read().decode().strip() == text

    def test_not_ready_without_a_backend(self) -> None:
        with Gateway("http://127.0.0.1:9", health_interval_s=0.1) as gateway:
            wait_until(lambda: gateway.ready() == 503)
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(gateway.admin_url + "/readyz", timeout=60)
            assert error.value.read().decode().strip() == "no backend is up"
            error.value.close()
            with urllib.request.urlopen(gateway.admin_url + "/healthz", timeout=60) as answer:
                assert answer.status == 200

    def test_data_paths_are_not_on_the_admin_port(self, gateway: Gateway) -> None:
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(gateway.admin_url + "/v1/models", timeout=60)
        assert error.value.code == 404
        error.value.close()


class TestDrain:
    def test_streams_finish(self) -> None:
        with gateway_and_engine({"slots": 100, "drain_s": 600}, slots=100, token_s=0.5, answer_tokens=60) as (gateway, engine):
            clients = [Client(gateway.address) for _ in range(100)]
            idle = Client(gateway.address)
            for client in clients:
                client.chat(stream=True)
            wait_until(lambda: engine.stats()["running"] == 100)
            gateway.signal(signal.SIGTERM)
            assert idle.closed_within(), "an idle connection is closed at once"
            wait_until(lambda: gateway.ready() == 503)
            refused = ask(gateway.address, CHAT, {"messages": []})
            assert (refused.status, refused.headers["connection"]) == (503, "close")
            assert refused.headers["x-hangup-reason"] == "draining"
            engine.behave(token_s=0.005)
            for client in clients:
                answer = client.read_answer()
                assert answer.complete
                assert answer.body.endswith(b"[DONE]\n\n")
                client.fin()
            idle.fin()
            assert gateway.wait() == 0
            outcomes = [row["outcome"] for row in gateway.log() if row["event"] == "call_ended"]
            assert outcomes.count("completed") == 100

    def test_deadline(self) -> None:
        with gateway_and_engine({"drain_s": 0.5}, slots=100) as (gateway, engine):
            clients = [Client(gateway.address) for _ in range(100)]
            for client in clients:
                client.chat(stream=True, **LONG)
            for client in clients:
                client.read_until(b'"content":" ')
            start = time.monotonic()
            gateway.signal(signal.SIGTERM)
            for client in clients:
                rest = client.buffer
                while data := client.sock.recv(65536):
                    rest += data
                assert b'"code":"drain_s"' in rest
                assert not rest.endswith(b"0\r\n\r\n")
                client.fin()
            assert gateway.wait() == 0
            assert elapsed(start) > 0.4
            engine.wait_idle()
            assert {row["outcome"] for row in gateway.log() if row["event"] == "call_ended"} == {"drained"}

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_second_signal_forces(self, number: signal.Signals) -> None:
        with gateway_and_engine({"drain_s": 600}) as (gateway, engine), Client(gateway.address) as client:
            client.chat(stream=True, **LONG)
            client.read_until(b'"content":" ')
            gateway.signal(number)
            wait_until(lambda: gateway.ready() == 503)
            gateway.signal(number)
            assert gateway.wait() == 0, "long before drain_s"
            engine.wait_idle()

    def test_whole_answers_get_a_status(self) -> None:
        with gateway_and_engine({"drain_s": 0.3}) as (gateway, _), Client(gateway.address) as client:
            client.chat(**LONG)
            wait_until(lambda: gateway.metrics()['hangup_calls_live{phase="answering"}'] == 1)
            gateway.signal(signal.SIGTERM)
            answer = client.read_answer()
            assert (answer.status, answer.headers["x-hangup-reason"]) == (503, "drain_s")

    def test_idle_process_ends_at_once(self) -> None:
        with gateway_and_engine({"drain_s": 600}) as (gateway, _):
            gateway.signal(signal.SIGTERM)
            assert gateway.wait() == 0, "long before drain_s"


def series_shown_twice(gateway: Gateway) -> list[str]:
    text = urllib.request.urlopen(f"{gateway.admin_url}/metrics", timeout=60).read().decode()
    names = Counter(line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#"))
    return [name for name, count in names.items() if count > 1]


class TestReload:
    def test_good(self, engine: StandIn) -> None:
        with StandIn() as other:
            text = '[limits]\noutput_tokens_max = {}\n[[backend]]\nurl = "{}"\n'
            with Gateway(config=text.format(10, other.url)) as gateway, Client(gateway.address) as client:
                assert gateway.config_path is not None
                client.chat(stream=True, max_tokens=10)
                client.read_until(b'"content":" ')
                gateway.config_path.write_text(text.format(3, engine.url))
                gateway.signal(signal.SIGHUP)
                gateway.find_line("configuration reloaded")
                assert b"[DONE]" in client.read_until(b"[DONE]")  # what runs goes on where it is
                answer = ask(gateway.address, CHAT, {"messages": [], "max_tokens": 50})
                assert answer.json()["usage"]["completion_tokens"] == 3
                assert len(other.seen()) == 1
                wait_until(lambda: other.stats()["connections"] == 1, what="the old backend's connections to close")
                up = [name for name in gateway.metrics() if name.startswith("hangup_backend_up")]
                assert up == [f'hangup_backend_up{{backend="127.0.0.1:{engine.port}"}}']

    def test_again_and_again_while_calls_run(self, engine: StandIn) -> None:
        """Each reload changes the backend; old backends disappear with their last call, and none appears twice."""
        text = '[[backend]]\nweight = {}\nurl = "{}"\nname = "b"\n'
        with Gateway(config=text.format(30, engine.url)) as gateway, contextlib.ExitStack() as stack:
            assert gateway.config_path is not None
            clients = []
            for count in (1, 2, 3):
                clients.append(stack.enter_context(Client(gateway.address)))
                clients[-1].chat(stream=True, **LONG)
                clients[-1].read_until(b'"content":" ')
                gateway.config_path.write_text(text.format(30 + count, engine.url))
                gateway.signal(signal.SIGHUP)
                wait_until(lambda: [row["event"] for row in gateway.log()].count("config_reloaded") == len(clients))
            assert series_shown_twice(gateway) == []
            for client in clients:
                client.fin()
            engine.wait_idle()
            wait_until(lambda: gateway.metrics()['hangup_pending_stops{backend="b"}'] == 0)
            assert gateway.metrics()['hangup_releases_total{backend="b",result="verified"}'] == 3
            assert series_shown_twice(gateway) == []

    def test_bad_keeps_the_old_one(self, engine: StandIn) -> None:
        with Gateway(config=f'[[backend]]\nurl = "{engine.url}"\n') as gateway:
            assert gateway.config_path is not None
            gateway.config_path.write_text("prot = 1\n")
            gateway.signal(signal.SIGHUP)
            gateway.find_line("did you mean port")
            assert ask(gateway.address, CHAT, {"messages": []}).status == 200
            gateway.config_path.write_text(f'log = "none"\n[[backend]]\nurl = "{engine.url}"\n')
            gateway.signal(signal.SIGHUP)
            gateway.find_line("a restart is needed for: log")
            assert ask(gateway.address, CHAT, {"messages": []}).status == 200

    def test_keys(self, engine: StandIn) -> None:
        from hangup.cli.keys import digest_of

        text = '[[backend]]\nurl = "{}"\n[[tenant]]\nname = "t"\nkey_sha256 = ["{}"]\n'
        with Gateway(config=text.format(engine.url, digest_of("old"))) as gateway:
            assert gateway.config_path is not None
            gateway.config_path.write_text(text.format(engine.url, digest_of("new")))
            gateway.signal(signal.SIGHUP)
            gateway.find_line("configuration reloaded")
            statuses = [ask(gateway.address, CHAT, {"messages": []}, {"x-api-key": key}).status for key in ("old", "new")]
            assert statuses == [401, 200]


def test_too_many_connections(engine: StandIn) -> None:
    with Gateway(engine.url, connections_max=5) as gateway, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(Client(gateway.address)) for _ in range(5)]
        wait_until(lambda: gateway.metrics()["hangup_connections"] == 5)
        with Client(gateway.address) as sixth:
            assert sixth.closed_within()
        kept[0].chat(max_tokens=1)
        assert kept[0].read_answer().status == 200
        assert gateway.metrics()["hangup_connections_refused_total"] == 1


def test_a_log_reader_that_stops_does_not_stop_the_gateway(engine: StandIn) -> None:
    """The log's pipe fills up: hangup drops and counts lines, and calls continue."""
    command = [*HANGUP, "serve", "--port", "0", "--admin-port", "0", "--upstream", engine.url]
    process = subprocess.Popen([*command, "--log-lines-max", "50"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        words = process.stderr.readline().split()
        port = int(words[2].rpartition(":")[2])
        admin = words[4].rstrip(")")
        with Client(("127.0.0.1", port)) as client:
            for _ in range(600):
                client.send(b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n")
                assert client.read_answer().status == 404
        text = urllib.request.urlopen(f"{admin}/metrics", timeout=60).read().decode()
        dropped = next(line for line in text.splitlines() if line.startswith("hangup_log_lines_dropped_total"))
        assert float(dropped.split()[1]) > 0
    finally:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_a_standard_stream_that_was_closed_does_not_abort_the_gateway(engine: StandIn, closed: str) -> None:
    """Otherwise a socket would get the closed stream's number, and libuv aborts the process when it closes such a socket."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *HANGUP, "serve", "--port", "0", "--admin-port", "0"]
    with subprocess.Popen([*command, "--upstream", engine.url], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            serving = process.stderr.readline()
            assert serving.startswith("hangup: serving http"), serving
            port = int(serving.split()[2].rpartition(":")[2])
            assert ask(("127.0.0.1", port), CHAT, {"messages": [], "max_tokens": 1}).status == 200
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
