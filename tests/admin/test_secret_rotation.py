"""Secrets from files and commands: read again by a reload, and found nowhere that anybody can look."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hangup.cli.client import Admin
from hangup.errors import HangupError
from hangup.gateway.otel_environment import TraceTarget
from hangup.gateway.otlp import Exporter
from support.linux import proc
from support.processes import Gateway, StandIn, reserved_port
from support.raw import ask
from support.raw_engine import raw_engine
from support.receiver import Posted, receiver
from support.waiting import wait_until

CHAT, BODY = "/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
PLANTED = "planted"  # part of every secret below


def status_of(gateway: Gateway, token: str, path: str = "/api/calls") -> int:
    request = urllib.request.Request(gateway.admin_url + path, headers={"authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def shown_by(gateway: Gateway, token: str) -> list[bytes]:
    """Return what the admin port answers, with its headers."""
    found = []
    paths = ("/", "/metrics", "/readyz", "/api/overview", "/api/backends", "/api/calls", "/api/zombies", "/api/jobs", "/api/x")
    for path in paths:
        request = urllib.request.Request(gateway.admin_url + path, headers={"authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found.append(str(answer.headers).encode() + answer.read())
        except urllib.error.HTTPError as error:
            found.append(error.read())
    return found


def children(pid: int) -> list[int]:
    found = [int(child) for child in proc(pid, f"task/{pid}/children").read_text().split()]
    return found + [each for child in found for each in children(child)]


def reloaded(gateway: Gateway, times: int) -> None:
    gateway.signal(signal.SIGHUP)
    wait_until(lambda: sum("configuration reloaded" in line for line in gateway.stderr_lines) == times, what="a reload")


class Secrets:
    """A configuration whose secrets come from a file, a command and variables."""

    def __init__(self, tmp_path: Path, port: int, engine: str, traces: str) -> None:
        self.tmp_path, self.key, self.token = tmp_path, tmp_path / "secret-key", tmp_path / "secret-token"
        self.headers = tmp_path / "secret-headers"
        self.write(1)
        spawn = f"{sys.executable} -m hangup standin --port {{port}}"
        read = f"{sys.executable} -c \\\"print(open('{self.token}').read())\\\""
        (tmp_path / "out").mkdir()
        self.text = f"""
        admin_token_command = "{read}"
        log = "{tmp_path}/out/calls.log"
        ledger = "{tmp_path}/out/ledger.sqlite"
        jobs = "{tmp_path}/out/jobs.sqlite"
        otlp_endpoint = "{traces}"
        otlp_headers_file = "{self.headers}"
        [limits]
        ledger_flush_s = 0.05
        [[backend]]
        url = "{engine}"
        name = "one"
        models = ["one"]
        api_key_file = "{self.key}"
        [[backend]]
        url = "http://127.0.0.1:{port}"
        name = "two"
        models = ["two"]
        api_key_env = "KEY_OF_TWO"
        spawn = "{spawn}"
        [[backend]]
        url = "http://127.0.0.1:9"
        name = "three"
        models = ["three"]
        api_key_env = "KEY_OF_THREE"
        """
        self.env = {"KEY_OF_TWO": "planted-two", "KEY_OF_THREE": "planted-three", "HANGUP_API_KEY": "planted-client"}

    def write(self, generation: int) -> None:
        self.key.write_text(f"planted-key-{generation}\n")
        self.token.write_text(f"planted-token-{generation}")
        self.headers.write_text(f"x-collector-key=planted-headers-{generation}\n")


def test_secrets_are_read_again_and_found_nowhere(tmp_path: Path) -> None:
    with StandIn(token_s=0.001) as engine, receiver() as (traces, spans), reserved_port() as port:
        secrets = Secrets(tmp_path, port, engine.url, traces)
        seen: list[bytes] = []
        with Gateway(config=secrets.text, env=secrets.env) as gateway:
            assert status_of(gateway, "planted-token-1") == 200 and status_of(gateway, "x") == 401
            answers = [ask(gateway.address, CHAT, {**BODY, "model": name}).body for name in ("one", "two", "three", "four")]
            of_client = {"Authorization": "Bearer planted-client", "X-Api-Key": "planted-client", "Prefer": "respond-async"}
            job = ask(gateway.address, CHAT, {**BODY, "model": "one"}, of_client)  # a job, which the store keeps
            assert job.status == 202
            answers.append(job.body)
            assert engine.seen()[-1]["headers"]["authorization"] == "Bearer planted-key-1"
            wait_until(lambda: headers_of(spans) >= {"planted-headers-1"}, what="a trace")
            seen += [*answers, *shown_by(gateway, "planted-token-1")]

            secrets.write(2)
            reloaded(gateway, 1)
            assert status_of(gateway, "planted-token-2") == 200 and status_of(gateway, "planted-token-1") == 401
            assert ask(gateway.address, CHAT, {**BODY, "model": "one"}).status == 200
            assert engine.seen()[-1]["headers"]["authorization"] == "Bearer planted-key-2"
            wait_until(lambda: headers_of(spans) >= {"planted-headers-2"}, what="a trace with the new headers")

            secrets.key.write_text("")  # as while it is being written: the old one stays in use
            gateway.signal(signal.SIGHUP)
            gateway.find_line(r"api_key_file: .*secret-key is empty")
            assert ask(gateway.address, CHAT, {**BODY, "model": "one"}).status == 200
            assert engine.seen()[-1]["headers"]["authorization"] == "Bearer planted-key-2"
            secrets.write(2)

            processes = [gateway.popen.pid, *children(gateway.popen.pid)]
            seen += [proc(pid, "cmdline").read_bytes() for pid in processes]
            (engine_of_two,) = processes[1:]
            environment = proc(engine_of_two, "environ").read_bytes()
            assert b"KEY_OF_TWO=planted-two" in environment, "an engine may need its own key"
            seen += [environment.replace(b"planted-two", b""), *shown_by(gateway, "planted-token-2")]
            limits = proc(gateway.popen.pid, "limits").read_text()
            assert next(line.split()[4] for line in limits.splitlines() if line.startswith("Max core")) == "0"
            theirs = proc(engine_of_two, "limits").read_text()
            given = resource.getrlimit(resource.RLIMIT_CORE)[0]
            expected = "unlimited" if given == resource.RLIM_INFINITY else str(given)
            assert next(line.split()[4] for line in theirs.splitlines() if line.startswith("Max core")) == expected
        seen += [file.read_bytes() for file in (tmp_path / "out").iterdir()]
        assert len(list((tmp_path / "out").iterdir())) >= 3
        seen += [each.body for each in spans] + ["\n".join(gateway.stdout_lines + gateway.stderr_lines).encode()]
    assert [text for text in seen if PLANTED.encode() in text] == []


def test_new_headers_go_to_the_new_collector_only(tmp_path: Path) -> None:
    """A key must not reach the collector that it is not for, even if one reload changes both, and others follow it."""
    headers = tmp_path / "headers"

    def config(collector: str) -> str:
        return f'otlp_endpoint = "{collector}"\notlp_headers_file = "{headers}"\n[[backend]]\nurl = "{engine.url}"\n'

    with StandIn(token_s=0.001) as engine, receiver() as (old, old_spans), receiver() as (new, new_spans):
        headers.write_text("x-collector-key=old")
        with Gateway(config=config(old)) as gateway:
            assert gateway.config_path is not None
            assert ask(gateway.address, CHAT, BODY).status == 200
            wait_until(lambda: headers_of(old_spans) == {"old"}, what="a trace at the old collector")
            headers.write_text("x-collector-key=new")
            gateway.config_path.write_text(config(new))
            reloaded(gateway, 1)
            assert ask(gateway.address, CHAT, BODY).status == 200
            wait_until(lambda: headers_of(new_spans) == {"new"}, what="a trace at the new collector")
            gateway.config_path.write_text(config("").replace('otlp_endpoint = ""\n', ""))  # traces end with the process
            headers.write_text("x-collector-key=newest")
            reloaded(gateway, 2)
            rows = wait_until(lambda: [r for r in gateway.log() if r["event"] == "config_reloaded"][1:], what="both log lines")
            assert rows[0]["needs_restart"] == ["otlp_endpoint"]
            before = len(new_spans)
            assert ask(gateway.address, CHAT, BODY).status == 200
            wait_until(lambda: len(new_spans) > before, what="a trace of the last call")
        assert headers_of(old_spans) == {"old"} and headers_of(new_spans) == {"new"}


def test_a_redirect_takes_no_secret_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector, a webhook or an admin port that redirects: urllib would send the headers to whatever host it names."""
    with receiver() as (elsewhere, posted), receiver(redirect_to=elsewhere) as (url, _):
        with pytest.raises(urllib.error.HTTPError, match="302"):
            Exporter(TraceTarget(url), "x-collector-key=planted", 60.0).send([])
        monkeypatch.setenv("HANGUP_ADMIN_TOKEN", "planted")
        with pytest.raises(HangupError, match=f"redirects to {elsewhere}"):
            Admin(argparse.Namespace(admin=url)).get("/api/calls")
        assert posted == []


def headers_of(spans: list[Posted]) -> set[str]:
    lines = [line for each in spans for line in each.headers.splitlines()]
    return {line.partition(":")[2].strip() for line in lines if line.lower().startswith("x-collector-key:")}


@pytest.mark.parametrize(
    "command", [["config", "check"], ["config", "show", "--config"], ["config", "show", "--json", "--config"]]
)
def test_the_commands_show_none(command: list[str], tmp_path: Path) -> None:
    secrets = Secrets(tmp_path, 7, "http://127.0.0.1:8", "http://user:planted@127.0.0.1:4318")
    path = tmp_path / "hangup.toml"
    path.write_text(f'alarm_webhook = "http://user:planted@127.0.0.1/services/planted?key=planted"\n{secrets.text}')
    done = run(*command, str(path), env=secrets.env)
    assert done.returncode == 0 and PLANTED not in done.stdout + done.stderr, done.stderr
    assert "one" in done.stdout or "3 backends" in done.stdout
    if "--json" in command:
        assert json.loads(done.stdout)["backend"][0]["api_key_file"] == str(secrets.key)
    secrets.key.write_text("planted key")
    done = run(*command, str(path), env=secrets.env)
    assert done.returncode == 2 and PLANTED not in done.stdout + done.stderr and "api_key_file: the key contains" in done.stderr


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/v1/models"])
def test_an_engine_that_quotes_the_key_it_refuses(path: str) -> None:
    """Clients do not have it; and they would take it for their own."""

    def script(sock: socket.socket, request: bytes) -> None:
        key = re.search(rb"authorization: Bearer (\S+)", request)
        quoted = key[1] if key else b"none"
        body = b'{"error":{"message":"Incorrect API key provided: %s"}}' % quoted
        head = b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\nx-seen: %s\r\ncontent-length: %d\r\n\r\n"
        sock.sendall(head % (quoted, len(body)))
        sock.sendall(body)

    settings = "jobs = 'none'\nlog_format = 'json'\n[[backend]]\nurl = '{url}'\napi_key_env = 'KEY'\nengine = 'openai'\n"
    with (
        raw_engine(script) as engine,
        Gateway(config=settings.format(url=engine.url), env={"KEY": "sk-planted"}) as gateway,
    ):
        request = urllib.request.Request(
            gateway.url + path,
            json.dumps(BODY).encode() if path != "/v1/models" else None,
            {"content-type": "application/json"},
        )
        try:
            answer = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            answer = error
        seen = str(answer.headers) + answer.read().decode()
        assert PLANTED not in seen
        assert path == "/v1/models" or "Incorrect API key provided: **********" in seen
    assert PLANTED not in "\n".join(gateway.stdout_lines + gateway.stderr_lines)


@pytest.mark.parametrize("key", ["1", "none"])
def test_a_placeholder_instead_of_a_key_leaves_errors_as_they_are(key: str) -> None:
    """It is no secret, and covered everywhere it would break the answer's head, or what the engine says."""
    body = b'{"error":{"message":"none of 11 models"}}'
    answer = b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    settings = "jobs = 'none'\n[[backend]]\nurl = '{url}'\napi_key_env = 'KEY'\nengine = 'openai'\n"
    with (
        raw_engine(lambda sock, request: sock.sendall(answer)) as engine,
        Gateway(config=settings.format(url=engine.url), env={"KEY": key}) as gateway,
    ):
        request = urllib.request.Request(gateway.url + CHAT, json.dumps(BODY).encode(), {"content-type": "application/json"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
    with refused.value as error:
        assert error.status == 404 and b"none of 11 models" in error.read()


def run(*arguments: str, env: dict[str, str]) -> Any:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HANGUP_")} | env
    command = [sys.executable, "-m", "hangup", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=clean, timeout=60, check=False)


def test_a_replaced_file_is_read_without_a_signal(tmp_path: Path) -> None:
    with StandIn(token_s=0.001) as engine:
        key = tmp_path / "key"
        key.write_text("planted-key-1")
        config = f'config_watch_s = 0.1\n[[backend]]\nurl = "{engine.url}"\napi_key_file = "{key}"\n'
        with Gateway(config=config) as gateway:
            assert ask(gateway.address, CHAT, BODY).status == 200
            (tmp_path / "new").write_text("planted-key-22")
            (tmp_path / "new").rename(key)
            gateway.find_line("configuration reloaded")
            assert ask(gateway.address, CHAT, BODY).status == 200
            assert engine.seen()[-1]["headers"]["authorization"] == "Bearer planted-key-22"


def test_several_workers_get_them_and_read_them_again(tmp_path: Path) -> None:
    with StandIn(token_s=0.001) as engine:
        key, token = tmp_path / "key", tmp_path / "token"
        key.write_text("planted-key-1")
        token.write_text("planted-token-1")
        config = f'workers = 2\nadmin_token_file = "{token}"\n[[backend]]\nurl = "{engine.url}"\napi_key_file = "{key}"\n'
        with Gateway(config=config) as gateway:
            assert ask(gateway.address, CHAT, BODY).status == 200
            assert engine.seen()[-1]["headers"]["authorization"] == "Bearer planted-key-1"
            key.write_text("planted-key-2")
            token.write_text("planted-token-2")
            gateway.signal(signal.SIGHUP)
            wait_until(lambda: status_of(gateway, "planted-token-2") == 200, what="the new token")

            def uses_new_key() -> bool:
                assert ask(gateway.address, CHAT, BODY).status == 200
                return bool(engine.seen()[-1]["headers"]["authorization"] == "Bearer planted-key-2")

            wait_until(uses_new_key, what="the new key")
            texts = [proc(pid, name).read_bytes() for pid in children(gateway.popen.pid) for name in ("cmdline", "environ")]
        texts.append("\n".join(gateway.stdout_lines + gateway.stderr_lines).encode())
    assert len(texts) >= 5 and not [text for text in texts if PLANTED.encode() in text]
