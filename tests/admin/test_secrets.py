"""Case 26: a client's secrets, planted wherever they can come in, appear nowhere that anybody can look."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import urllib.request
from pathlib import Path

from admin.test_api import admin
from hangup.gateway.admin.guard import PAGE_PATHS
from support.processes import Gateway, StandIn
from support.raw import Client
from support.receiver import Posted, receiver
from support.waiting import wait_until

KEY, WRONG_KEY, ENGINE_KEY, TOKEN = "planted-key", "planted-wrong-key", "planted-engine-key", "planted-token"
PROMPT, BROKEN, COOKIE, QUERY = "planted-prompt", "planted-broken-body", "planted-cookie", "planted-query"
SECRETS = [KEY, WRONG_KEY, ENGINE_KEY, TOKEN, PROMPT, BROKEN, COOKIE, QUERY, hashlib.sha256(KEY.encode()).hexdigest()]
CHAT = "/v1/chat/completions"


def test_nothing_planted_comes_out(tmp_path: Path) -> None:
    with StandIn(slots=8, token_s=0.002, deaf=True) as engine, receiver() as (traces, spans), receiver() as (hook, alarms):
        config = f"""
        admin_token_env = "ADMIN_TOKEN"
        ledger = "{tmp_path}/ledger.db"
        log = "{tmp_path}/calls.log"
        otlp_endpoint = "{traces}"
        alarm_webhook = "{hook}"
        [limits]
        ledger_flush_s = 0.05
        counters_interval_s = 0.1
        divergence_window_s = 1
        divergence_hold_s = 0.5
        release_grace_s = 0.2
        [[backend]]
        url = "{engine.url}"
        api_key_env = "ENGINE_KEY"
        [[tenant]]
        name = "alice"
        key_sha256 = ["{hashlib.sha256(KEY.encode()).hexdigest()}"]
        """
        with Gateway(config=config, env={"ADMIN_TOKEN": TOKEN, "ENGINE_KEY": ENGINE_KEY}) as gateway:
            headers = {"Authorization": f"Bearer {KEY}", "Cookie": f"session={COOKIE}"}
            wait_until(lambda: looked(gateway, "/api/backends").count(b'"tokens_computed":0') == 1)
            for at in range(8):  # they leave, and the deaf engine computes on: zombies, a quarantine, an alarm
                with Client(gateway.address) as client:
                    body = {"messages": [{"content": PROMPT}], "stream": True, "ignore_eos": True, "max_tokens": 9000}
                    client.post(CHAT, body, {"X-Request-Id": f"told-{at}", **headers})
                    client.read_until(b'"content":" ')
            assert refused(gateway, CHAT, b'{"messages": "' + BROKEN.encode(), headers) == 400
            assert refused(gateway, CHAT, b"{}", {"X-Api-Key": WRONG_KEY}) == 401
            assert refused(gateway, f"/nowhere?key={QUERY}", b"{}", headers) == 404
            wait_until(lambda: alarms and spans, what="an alarm and traces")
            wait_until(lambda: looked(gateway, "/api/zombies").count(b"told-"), what="a zombie")
            shown = {path: looked(gateway, path) for path in PATHS}
            shown["files while it runs"] = files(tmp_path)
            assert (tmp_path / "ledger.db-wal").exists()
        shown |= {"traces": text_of(spans), "webhook": text_of(alarms), "files": files(tmp_path)}
        shown["output"] = "\n".join(gateway.stdout_lines + gateway.stderr_lines).encode()
    # That these are the right places to look at: what may be seen is there.
    for place in ("/api/calls/told-0", "/api/overview", "/api/events", "/metrics", "traces", "webhook", "files while it runs"):
        assert b"alice" in shown[place], place
    found = [(place, secret) for place, text in shown.items() for secret in SECRETS if secret.encode() in text]
    assert found == []


def text_of(posted: list[Posted]) -> bytes:
    return b"".join(each.headers.encode() + each.body for each in posted)


PATHS = [
    *("/", "/page.js", "/parts.js", "/graph.js", "/uplot.js", "/page.css", "/uplot.css", "/api/history"),
    *("/metrics", "/readyz", "/api/overview", "/api/events", "/api/zombies", "/api/backends"),
    *("/api/calls", "/api/calls/told-0", "/api/calls/unknown"),
    *(f"/api/report?by={by}" for by in ("tenant", "model", "backend", "cause")),
]


def looked(gateway: Gateway, path: str) -> bytes:
    """Return everything that the admin port shows; of an event stream, the first event."""
    request = urllib.request.Request(gateway.admin_url + path, headers={"authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            body = answer.readline() if path == "/api/events" else answer.read()
            return str(answer.headers).encode() + bytes(body)
    except urllib.request.HTTPError as error:
        return bytes(error.read())


def refused(gateway: Gateway, path: str, body: bytes, headers: dict[str, str]) -> int:
    client = http.client.HTTPConnection(*gateway.address, timeout=60)
    client.request("POST", path, body, {"Content-Type": "application/json", **headers})
    status = client.getresponse().status
    client.close()
    return status


def files(folder: Path) -> bytes:
    """Return everything written to disk: the ledger with its WAL, and the log."""
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_the_admin_port_is_shut_without_the_token(engine: StandIn) -> None:
    with Gateway(engine.url, admin_token_env="T", env={"T": TOKEN}) as gateway:
        for path in PATHS:
            if path not in {"/readyz", *PAGE_PATHS}:
                assert admin(gateway, "GET", path)[0] == 401, path
