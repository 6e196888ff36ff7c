"""`hangup probe` against engines of known behaviour, on real sockets, as a user runs it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from hangup.probe import ProbeError, ProbeOptions, caller, run_probe
from support.processes import Gateway, Process, StandIn
from support.waiting import PATIENCE_S, wait_until

QUICK = ("--rest", "1.2", "--within", "0.6", "--quiet", "--json", "-")


def probe(url: str, *flags: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hangup", "probe", url, *flags]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=4 * PATIENCE_S, env={**os.environ, **(env or {})}
    )


def verdicts(url: str, *flags: str) -> dict[str, dict[str, Any]]:
    done = probe(url, *QUICK, *flags)
    assert done.returncode == 0, done.stderr
    return {row["case"]: row for row in json.loads(done.stdout)["results"]}


def rulings(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: row["ruling"] for name, row in rows.items()}


@pytest.fixture(scope="module")
def healthy() -> Iterator[StandIn]:
    with StandIn(token_s=0.005, prefill_s=0.02, slots=3) as engine:
        yield engine


def test_an_engine_that_stops(healthy: StandIn) -> None:
    before = healthy.stats()
    rows = verdicts(
        healthy.url, "--cases", "upload-fin,queue-fin,prefill-rst,stream-fin,whole-rst,keep-alive-fin,pipelined-rst"
    )
    told = {name: row for name, row in rows.items() if row["ruling"] != "cannot be told"}  # a busy machine may be too slow
    assert {row["ruling"] for row in told.values()} <= {"stopped", "stopped late"}, rows
    assert len(rows) == 7 and len(told) >= 4 and all(row["tokens"] is not None for row in told.values()), rows
    stats = healthy.wait_idle()
    assert stats["aborted"] - before["aborted"] >= len(told) - 1, "all but the upload reached the engine"
    assert stats["tokens_after_gone"] == before["tokens_after_gone"]


def test_an_engine_that_is_deaf(tmp_path: Path) -> None:
    with StandIn(token_s=0.005, prefill_s=0.02, slots=3, deaf=True) as engine:
        done = probe(engine.url, *QUICK, "--cases", "stream-fin,whole-rst,whole-fin-slots", "--fail-on", "any")
        assert done.returncode == 1, done.stderr
        rows = {row["case"]: row for row in json.loads(done.stdout)["results"]}
        assert set(rulings(rows).values()) == {"never stopped"}, rows
        assert rows["whole-fin-slots"]["departed"] == rows["whole-fin-slots"]["ran_on"] == 2
        report = json.loads(done.stdout)
        assert (
            "3 × never stopped" in report["verdict"] and report["slots"] == 3 and report["command"].startswith("hangup probe")
        )


def test_an_engine_that_is_half_deaf() -> None:
    with StandIn(token_s=0.005, prefill_s=0.02, deaf_to="whole") as engine:
        found = rulings(verdicts(engine.url, "--cases", "stream-fin,whole-fin", "--slots", "4"))
    assert found["whole-fin"] == "never stopped" and found["stream-fin"] != "never stopped"


def test_a_cancel_that_wedges_the_engine_is_a_finding_of_the_case_that_did_it() -> None:
    """Without --slots the probe looks for them first, and nobody may leave in that."""
    with StandIn(token_s=0.005, prefill_s=0.02, slots=3, wedge=True) as engine:
        done = probe(engine.url, *QUICK, "--cases", "upload-fin,stream-fin,whole-fin", "--fail-on", "broke")
        rows = json.loads(done.stdout)["results"]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert rows[0]["ruling"] != "broke", rows
    assert rows[1]["ruling"] == "broke" and "not answered any more" in rows[1]["notes"][0]
    assert rows[2]["ruling"] == "cannot be told"


def test_an_engine_that_dies_before_anybody_left_cannot_be_probed() -> None:
    with StandIn(token_s=0.005, prefill_s=0.02, crash_after=100) as engine:
        assert "broke before any client left: an answer that was read to its end was cut" in one_line(probe(engine.url, *QUICK))


def test_a_gateway_is_probed_with_the_figures_of_the_engine_behind_it(healthy: StandIn) -> None:
    with Gateway(healthy.url) as gateway:
        url = f"http://127.0.0.1:{gateway.address[1]}"
        rows = verdicts(url, "--engine-metrics", healthy.url, "--slots", "3", "--cases", "stream-fin,whole-fin")
    assert set(rulings(rows).values()) <= {"stopped", "stopped late"}, rows
    assert all(row["evidence"] == "the engine's own figures" for row in rows.values())


def test_a_place_without_figures_is_not_replaced_by_an_echo(healthy: StandIn) -> None:
    with StandIn(like="openai") as silent:
        line = one_line(probe(healthy.url, "--quiet", "--engine-metrics", silent.url))
        assert f"--engine-metrics: {silent.url} has no figures of a known engine at /calls, /slots" in line
        line = one_line(probe(healthy.url, "--quiet", "--engine-metrics", f"{silent.url}/v1/models"))
        assert "at /v1/models (a page of something else)" in line
    assert "--engine-metrics: nothing listens on 127.0.0.1:1" in one_line(
        probe(healthy.url, "--quiet", "--engine-metrics", "http://127.0.0.1:1")
    )


def test_an_engine_that_says_nothing_is_heard_by_its_echo() -> None:
    with StandIn(token_s=0.005, prefill_s=0.02, slots=2, like="openai", deaf_to="whole") as engine:
        rows = verdicts(engine.url, "--cases", "stream-fin,whole-fin,queue-fin")
    found = rulings(rows)
    assert found["whole-fin"] in ("never stopped", "cannot be told") and found["stream-fin"] != "never stopped"
    assert rows["queue-fin"]["ruling"] == "cannot be told"
    assert all("canaries" in row["evidence"] for row in rows.values() if row["ruling"] != "cannot be told")


def test_too_few_slots_are_no_evidence() -> None:
    """With more slots than --slots says, every canary is quick, and a deaf engine would seem to stop."""
    with StandIn(token_s=0.005, prefill_s=0.02, slots=4, like="openai", deaf=True) as engine:
        done = probe(engine.url, *QUICK, "--slots", "2", "--cases", "stream-fin")
    report = json.loads(done.stdout)
    assert report["results"][0]["ruling"] == "cannot be told" and report["evidence"] == "none"
    assert report["notes"] == ["2 streams at once do not hold another call back: there is no echo"]


def test_usage_that_the_api_reports_afterwards_is_the_last_evidence() -> None:
    with StandIn(token_s=0.005, prefill_s=0.02, slots=100, like="openrouter", deaf_every=2) as engine:
        rows = verdicts(engine.url, "--clients", "2", "--cases", "upload-fin,stream-fin,stream-rst,whole-fin")
    found = rulings(rows)
    assert found["stream-fin"] == "stopped" and found["stream-rst"] == "never stopped", rows
    assert rows["stream-rst"]["tokens_counted"] and rows["stream-rst"]["tokens"] > rows["stream-fin"]["tokens"]
    assert "usage as the API reports it (/v1/generation): " in rows["stream-fin"]["evidence"]
    assert found["upload-fin"] == found["whole-fin"] == "cannot be told" and "id under which" in rows["whole-fin"]["evidence"]


def test_usage_that_the_api_reports_for_whole_answers_only_is_none() -> None:
    with StandIn(token_s=0.005, prefill_s=0.02, slots=100, like="openai") as engine:
        flags = ("--api", "openai-responses", "--clients", "1", "--max-seconds", "15", "--cases", "prefill-fin,stream-fin")
        done = probe(engine.url, *QUICK, *flags)
    report = json.loads(done.stdout)
    assert report["evidence"] == "usage as the API reports it (/v1/responses)", report
    assert {row["ruling"] for row in report["results"]} == {"cannot be told"}


@pytest.mark.parametrize("api", ["anthropic", "ollama", "llamacpp", "tgi", "openai-completions", "openai-responses"])
def test_every_api(healthy: StandIn, api: str) -> None:
    rows = verdicts(healthy.url, "--api", api, "--slots", "3", "--cases", "stream-fin")
    assert rulings(rows)["stream-fin"] in ("stopped", "stopped late")


def test_the_budget_is_kept(healthy: StandIn) -> None:
    before = healthy.stats()["requests"]
    done = probe(healthy.url, *QUICK, "--max-calls", "12", "--cases", "stream")
    report = json.loads(done.stdout)
    assert report["calls"] <= 12 and healthy.stats()["requests"] - before <= 12
    assert any("--max-calls" in row["evidence"] for row in report["results"])


def test_the_seconds_are_kept_in_the_midst_of_an_answer() -> None:
    with StandIn(token_s=0.02, ignore_cap=True) as engine:
        line = one_line(probe(engine.url, *QUICK, "--max-seconds", "2"))
        assert "takes more than the budget of 2 s (--max-seconds)" in line
        engine.wait_idle()


def test_a_signal_in_the_search_for_slots_leaves_nothing_running() -> None:
    with (
        StandIn(token_s=0.01, prefill_s=0.02, slots=3, like="openai") as engine,
        Process("probe", engine.url, "--rest", "8", "--cases", "stream-fin") as process,
    ):
        process.find_line("looks for the number of its slots")
        wait_until(lambda: engine.stats()["running"] > 0, what="a call of the probe")
        process.signal(signal.SIGINT)
        assert process.wait() == 130
        assert engine.wait_idle()["aborted"] > 0, "its streams do not run to their end"


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_running(healthy: StandIn, sent: signal.Signals, code: int) -> None:
    aborted = healthy.stats()["aborted"]
    with Process("probe", healthy.url, "--rest", "6", "--slots", "3", "--cases", "stream-stall") as process:
        process.find_line("evidence:")  # now the case
        wait_until(lambda: healthy.stats()["running"] > 0, what="a call of the probe")
        process.signal(sent)
        assert process.wait() == code
        assert not any("Traceback" in line for line in process.stderr_lines)
    assert healthy.wait_idle()["aborted"] > aborted and healthy.stats()["connections"] <= 1


# What cannot be probed


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr and not done.stdout
    lines = [line for line in done.stderr.splitlines() if ": probes " not in line and ": asks " not in line]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_bad_flags() -> None:
    url = "http://127.0.0.1:1"
    assert "no variable NO_SUCH_KEY" in one_line(probe(url, "--api-key-env", "NO_SUCH_KEY"))
    assert "--within: must be more than 0" in one_line(probe(url, "--within", "0"))
    assert "there is no case 'x'" in one_line(probe(url, "--cases", "x"))
    assert "--fail-on: x:" in one_line(probe(url, "--fail-on", "x"))
    assert "--api: there is no 'x'" in one_line(probe(url, "--api", "x"))
    assert "expected http://" in one_line(probe("gopher://x"))


def test_nothing_listens_and_no_such_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    assert f"nothing listens on 127.0.0.1:{port}" in one_line(probe(f"http://127.0.0.1:{port}"))
    assert "there is no host" in one_line(probe("http://nowhere.invalid:8000"))


def test_an_endpoint_elsewhere_needs_consent() -> None:
    assert "pass --yes" in one_line(probe("http://8.8.8.8:1"))
    line = one_line(probe("https://api.openai.com", "--price", "10"))
    assert "OpenAI, which bills: up to 1.50" in line and "pass --yes" in line


def test_a_model_that_is_missing_and_a_key_that_is_wrong() -> None:
    with StandIn(models="alpha,beta") as engine:
        line = one_line(probe(engine.url, "--model", "gamma"))
    assert "does not serve the model 'gamma'" in line and "it lists alpha, beta" in line
    with serving(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 20\r\n\r\n" + b'{"error":"bad key"} ') as url:
        assert "it needs a key: --api-key-env NAME" in one_line(probe(url))
        line = one_line(probe(url, "--api-key-env", "WRONG_KEY", env={"WRONG_KEY": "sk-1"}))
        assert "the key is refused" in line and "sk-1" not in line


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "is no LLM endpoint"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>", "is no LLM endpoint"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "answers none of the known APIs"),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", "refuses calls now"),
        (b"", "is no LLM endpoint"),
    ],
)
def test_an_endpoint_that_is_no_llm(answer: bytes, said: str) -> None:
    with serving(answer) as url:
        assert said in one_line(probe(url))


def test_where_an_endpoint_redirects_to() -> None:
    with serving(b"HTTP/1.1 308 X\r\nlocation: https://llm.example/\r\ncontent-length: 0\r\n\r\n") as url:
        assert "redirects to https://llm.example/: give that URL" in one_line(probe(url))


def test_a_page_for_people_is_not_shown() -> None:
    page = b"<html><head><title>Error response</title></head><body>" + b"x" * 200
    with serving(b"HTTP/1.1 501 X\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page)) as url:
        line = one_line(probe(url))
    assert "HTTP 501: Error response" in line and "<html>" not in line


def test_tls_trouble(healthy: StandIn) -> None:
    assert "does not speak TLS; try http://" in one_line(probe(healthy.url.replace("http", "https")))
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with serving(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", context) as url:
        https = url.replace("http://127.0.0.1", "https://localhost")
        assert "its certificate is not trusted" in one_line(probe(https))
        assert "answers none of the known APIs" in one_line(probe(https, "--insecure"))
        assert "--ca-file /nowhere" in one_line(probe(https, "--ca-file", "/nowhere"))
        assert "is no LLM endpoint" in (line := one_line(probe(url))) and "https://?" in line


@pytest.mark.parametrize(("typed", "status"), [(b"n\n", 2), (b"", 130)], ids=["no", "Ctrl-C"])
def test_the_question_can_be_declined(typed: bytes, status: int) -> None:
    terminal, stdin = pty.openpty()
    command = [sys.executable, "-m", "hangup", "probe", "https://api.openai.com"]
    with subprocess.Popen(command, stdin=stdin, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = b""
        while b"[y/N]" not in said and (more := os.read(process.stderr.fileno(), 1 << 12)):
            said += more
        os.write(terminal, typed)
        if not typed:
            process.send_signal(signal.SIGINT)
        try:
            assert process.wait(PATIENCE_S) == status
        finally:
            process.kill()
            os.close(stdin)
            os.close(terminal)


def test_a_peer_that_does_not_answer_a_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(ProbeError, match="did not answer a TLS handshake"):
        asyncio.run(run_probe(ProbeOptions(f"https://127.0.0.1:{mute.getsockname()[1]}")))


class serving:  # noqa: N801 - used like a function
    """Start a server on loopback that gives every connection the same answer."""

    def __init__(self, answer: bytes, context: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._context = context

    def __enter__(self) -> str:
        self._sock = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return f"http://127.0.0.1:{self._sock.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(PATIENCE_S)

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            try:
                with self._context.wrap_socket(sock, server_side=True) if self._context is not None else sock as connection:
                    connection.settimeout(PATIENCE_S)
                    connection.recv(1 << 16)
                    connection.sendall(self._answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass
            except OSError:
                sock.close()
