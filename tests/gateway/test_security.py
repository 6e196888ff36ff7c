"""Keys, tenants, TLS, and secrets that must appear nowhere (cases 15 and 26)."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from hangup.cli.keys import digest_of
from support.linux import proc
from support.processes import Gateway, StandIn, gateway_and_engine
from support.raw import Client, ask
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
BODY = {"messages": [], "max_tokens": 1}


@pytest.fixture(scope="module")
def keyed(engine: StandIn) -> Iterator[Gateway]:
    config = f"""
    [[backend]]
    url = "{engine.url}"
    [[tenant]]
    name = "blue"
    key_sha256 = ["{digest_of("blue-key")}", "{digest_of("blue-key-2")}"]
    [[tenant]]
    name = "red"
    key_sha256 = ["{digest_of("red-key")}"]
    """
    with Gateway(config=config) as gateway:
        yield gateway


class TestKeys:
    @pytest.mark.parametrize(
        ("headers", "tenant"),
        [
            ({"Authorization": "Bearer blue-key"}, "blue"),
            ({"Authorization": "bearer blue-key-2"}, "blue"),
            ({"x-api-key": "red-key"}, "red"),
        ],
    )
    def test_right(self, keyed: Gateway, engine: StandIn, headers: dict[str, str], tenant: str) -> None:
        got = ask(keyed.address, CHAT, BODY, headers)
        assert got.status == 200
        assert keyed.call_log(got.headers["x-request-id"])["tenant"] == tenant
        seen = engine.seen()[-1]["headers"]
        assert "authorization" not in seen, "the gateway's key must not reach the engine"
        assert "x-api-key" not in seen

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer "},
            {"Authorization": "blue-key"},
            {"Authorization": "Basic blue-key"},
            {"x-api-key": ""},
            {"x-api-key": digest_of("red-key")},
        ],
    )
    def test_wrong(self, keyed: Gateway, engine: StandIn, headers: dict[str, str]) -> None:
        before = len(engine.seen())
        got = ask(keyed.address, CHAT, BODY, headers)
        assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer")
        assert got.json()["error"]["type"] == "authentication_error"
        assert ask(keyed.address, "/v1/messages", BODY, headers).json()["error"]["type"] == "authentication_error"
        assert len(engine.seen()) == before

    def test_refused_before_the_body(self, keyed: Gateway) -> None:
        with Client(keyed.address) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
            assert client.read_answer().status == 401

    def test_unknown_paths_need_a_key_too(self, keyed: Gateway) -> None:
        """Without a key, a client cannot learn which paths exist."""
        assert ask(keyed.address, "/nowhere", BODY).status == 401

    def test_the_clients_key_goes_on_where_we_ask_for_none(self, gateway: Gateway, engine: StandIn) -> None:
        ask(gateway.address, CHAT, BODY, {"Authorization": "Bearer theirs", "Cookie": "a=b", "X-Conversation-Id": "c"})
        seen = engine.seen()[-1]["headers"]
        assert seen["authorization"] == "Bearer theirs"
        assert "cookie" not in seen

    def test_a_backends_own_key(self, engine: StandIn) -> None:
        config = f'[[backend]]\nurl = "{engine.url}"\napi_key_env = "ENGINE_KEY"\n'
        with Gateway(config=config, env={"ENGINE_KEY": "theirs"}) as gateway:
            ask(gateway.address, CHAT, BODY, {"Authorization": "Bearer mine"})
            assert engine.seen()[-1]["headers"]["authorization"] == "Bearer theirs"

    def test_key_new(self) -> None:
        created = json.loads(subprocess.check_output([sys.executable, "-m", "hangup", "key", "new", "--json"], timeout=300))
        assert digest_of(created["key"]) == created["key_sha256"]
        printed = subprocess.check_output(
            [sys.executable, "-m", "hangup", "key", "digest"], input=created["key"].encode(), timeout=300
        )
        assert printed.decode().strip() == created["key_sha256"]


def test_secrets_appear_nowhere(engine: StandIn, tmp_path: Path) -> None:
    """Case 26: a planted key and prompt are in no log line, metric or message, even when everything fails."""
    secret_key, secret_prompt = "sk-planted-key-q4711z", "planted prompt q4711z"
    log = tmp_path / "calls.log"
    config = (
        f'log = "{log}"\n[[backend]]\nurl = "{engine.url}"\n[[tenant]]\nname = "t"\nkey_sha256 = ["{digest_of(secret_key)}"]\n'
    )
    with Gateway(config=config) as gateway:
        auth = {"Authorization": f"Bearer {secret_key}"}
        body = {"messages": [{"role": "user", "content": secret_prompt}], "max_tokens": 2}
        answers = [
            ask(gateway.address, CHAT, body, auth),
            ask(gateway.address, CHAT, {**body, "stream": True}, auth),
            ask(gateway.address, CHAT, {**body, "n": secret_prompt}, auth),
            ask(gateway.address, CHAT, {**body, "max_tokens": secret_prompt}, auth),
            ask(gateway.address, CHAT, b'{"messages": "' + secret_prompt.encode(), auth),
            ask(gateway.address, CHAT, body, {"Authorization": f"Bearer {secret_key}x"}),
            ask(gateway.address, CHAT, body, {"X-Request-Id": secret_prompt, **auth}),
            ask(gateway.address, CHAT, body, {"X-Request-Timeout": secret_key, **auth}),
            ask(gateway.address, "/v1/messages", {**body, "messages": secret_prompt}, auth),
        ]
        with Client(gateway.address) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: " + secret_prompt.encode() + b"\r\n\r\n")
            answers.append(client.read_answer())
        assert {a.status for a in answers} == {200, 400, 401}
        wait_until(lambda: log.exists() and log.read_text().count('"event":"call_ended"') == len(answers))
        metrics = urllib.request.urlopen(f"{gateway.admin_url}/metrics", timeout=60).read().decode()
        places = {
            "log": log.read_text(),
            "stderr": "\n".join(gateway.stderr_lines),
            "metrics": metrics,
            "errors": " ".join(a.body.decode() for a in answers if a.status != 200),
            "headers": " ".join(str(a.headers) for a in answers),
            "command line": proc(gateway.popen.pid, "cmdline").read_text(),
        }
        for place, text in places.items():
            assert secret_key not in text, place
            assert secret_prompt not in text, place
            assert "q4711z" not in text, place


class TestTls:
    @pytest.fixture(scope="class")
    @staticmethod
    def authority() -> trustme.CA:
        return trustme.CA()

    def files(self, authority: trustme.CA, folder: Path) -> tuple[str, str, str]:
        issued = authority.issue_cert("localhost", "127.0.0.1")
        paths = [folder / name for name in ("ca.pem", "cert.pem", "key.pem")]
        authority.cert_pem.write_to_path(str(paths[0]))
        issued.cert_chain_pems[0].write_to_path(str(paths[1]))
        issued.private_key_pem.write_to_path(str(paths[2]))
        return str(paths[0]), str(paths[1]), str(paths[2])

    def test_on_the_data_port(self, engine: StandIn, authority: trustme.CA, tmp_path: Path) -> None:
        ca, cert, key = self.files(authority, tmp_path)
        context = ssl.create_default_context(cafile=ca)
        with Gateway(engine.url, tls_cert=cert, tls_key=key) as gateway:
            assert gateway.url.startswith("https://")
            with Client(gateway.address, tls=context) as client:
                for _ in range(2):
                    client.chat(max_tokens=2)
                    assert client.read_answer().status == 200
                client.chat(stream=True, max_tokens=5)
                assert client.read_answer().body.endswith(b"[DONE]\n\n")

    @pytest.mark.parametrize("leave", [Client.fin, Client.reset])
    def test_hang_up_over_tls(self, engine: StandIn, authority: trustme.CA, tmp_path: Path, leave: object) -> None:
        ca, cert, key = self.files(authority, tmp_path)
        context = ssl.create_default_context(cafile=ca)
        with Gateway(engine.url, tls_cert=cert, tls_key=key) as gateway, Client(gateway.address, tls=context) as client:
            client.chat(stream=True, ignore_eos=True, max_tokens=20000)
            client.read_until(b'"content":" ')
            assert callable(leave)
            leave(client)
            engine.wait_idle()

    def test_to_the_engine(self, engine: StandIn, authority: trustme.CA, tmp_path: Path) -> None:
        """A second gateway with a certificate plays an https upstream, such as a hosted API."""
        ca, cert, key = self.files(authority, tmp_path)
        with Gateway(engine.url, tls_cert=cert, tls_key=key) as inner:
            config = f'[[backend]]\nurl = "https://localhost:{inner.port}/v1"\nca_file = "{ca}"\n'
            with Gateway(config=config) as gateway:
                assert ask(gateway.address, CHAT, BODY).status == 200
                got = ask(gateway.address, CHAT, {**BODY, "stream": True, "max_tokens": 9})
                assert got.complete
                with Client(gateway.address) as client:
                    client.chat(stream=True, ignore_eos=True, max_tokens=20000)
                    client.read_until(b'"content":" ')
                    client.fin()
                    engine.wait_idle()

    def test_an_unknown_certificate_is_refused(self, engine: StandIn, authority: trustme.CA, tmp_path: Path) -> None:
        _, cert, key = self.files(authority, tmp_path)
        with Gateway(engine.url, tls_cert=cert, tls_key=key) as inner:
            url = f"https://localhost:{inner.port}"
            with Gateway(url) as gateway:
                got = ask(gateway.address, CHAT, BODY)
                assert (got.status, got.headers["x-hangup-reason"]) == (502, "engine_unreachable")
            with Gateway(config=f'[[backend]]\nurl = "{url}"\ntls_verify = false\n') as gateway:
                assert ask(gateway.address, CHAT, BODY).status == 200


@contextlib.contextmanager
def flooded(gateway: Gateway, key: str, clients: int = 16) -> Iterator[Counter[int]]:
    """Let clients of one key call again at once, whatever the answer; yield the counts of their answers."""
    statuses: Counter[int] = Counter()
    over = threading.Event()

    def client() -> None:
        while not over.is_set():
            statuses[ask(gateway.address, CHAT, {"messages": [], "max_tokens": 8}, {"x-api-key": key}).status] += 1

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(client) for _ in range(clients)]
        try:
            wait_until(lambda: statuses[503], what="the flood to be refused")
            yield statuses
        finally:
            over.set()
    for answer in asking:
        answer.result()


def test_a_flood_by_one_key_leaves_the_others_alone() -> None:
    """Case 15: while one key floods the queue, every call of another key is served, and the flood's own calls are refused."""
    with StandIn(slots=2, prefill_s=0.005, token_s=0.005) as engine:
        config = f"""
        [limits]
        queue_depth_max = 4
        [[backend]]
        url = "{engine.url}"
        slots = 2
        [[tenant]]
        name = "blue"
        key_sha256 = ["{digest_of("blue-key")}"]
        [[tenant]]
        name = "red"
        key_sha256 = ["{digest_of("red-key")}"]
        """
        with Gateway(config=config) as gateway, flooded(gateway, "red-key") as flood:

            def statuses_for(key: str) -> Counter[int]:
                return Counter(ask(gateway.address, CHAT, BODY, {"x-api-key": key}).status for _ in range(30))

            refused = flood[503]
            assert statuses_for("blue-key") == {200: 30}
            assert flood[503] > refused, "the flood was over before the others asked"
            assert statuses_for("red-key")[503] > 0, "the queue was never full: the others had nothing to fear"
            assert set(flood) == {200, 503}


def test_extra_routes(engine: StandIn) -> None:
    config = (
        f'[[backend]]\nurl = "{engine.url}"\n[[route]]\npath = "/v1/rerank"\nmethods = ["POST"]\n[[route]]\npath = "/extra/*"\n'
    )
    with Gateway(config=config) as gateway:
        assert ask(gateway.address, "/v1/rerank", b"any body").status in (400, 404)  # the engine's own answer
        assert engine.seen()[-1]["path"] == "/v1/rerank"
        assert ask(gateway.address, "/extra/a/b", b"{}").status == 404
        assert engine.seen()[-1]["path"] == "/extra/a/b"
        before = len(engine.seen())
        for path in ("/extra/../standin/stats", "/extra/%2e%2e/standin/stats", "/extra/", "/v1/rerank/x"):
            assert ask(gateway.address, path, b"{}").headers["x-hangup-reason"] == "not_found"
        with Client(gateway.address) as client:
            client.send(b"GET /v1/rerank HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.read_answer().status == 405
        assert len(engine.seen()) == before


def test_abort_is_called(engine: StandIn) -> None:
    """Besides closing the connection, the adapter sends an explicit abort, by id."""
    with gateway_and_engine() as (gateway, own), Client(gateway.address) as client:
        wait_until(lambda: any(r.get("change") == "recognised as standin" for r in gateway.log()))
        client.chat(stream=True, ignore_eos=True)
        client.read_until(b'"content":" ')
        client.fin()
        own.wait_idle()
        wait_until(lambda: own.stats()["abort_requests"] == 1)
        assert gateway.metrics()['hangup_aborts_total{result="sent"}'] == 1
        assert gateway.metrics()['hangup_aborts_total{result="failed"}'] == 0
