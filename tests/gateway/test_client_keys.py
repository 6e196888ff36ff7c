"""A client's key reaches only the party that it belongs to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hangup.config import BackendSettings, Settings
from hangup.config.keys import PRIVATE, backends_with_client_key, party, warning
from hangup.config.load import load
from hangup.errors import ConfigError
from hangup.gateway.backends.adapters import ADAPTERS
from support.processes import Gateway, StandIn
from support.raw import Client, ask
from support.raw_engine import answer, raw_engine

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
THEIRS = {"Authorization": "Bearer theirs", "X-Api-Key": "theirs-too", "Api-Key": "and-this"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", PRIVATE),
        ("http://10.0.0.7", PRIVATE),
        ("http://[fd00::1]:8000/v1", PRIVATE),
        ("http://vllm:8000", PRIVATE),
        ("http://vllm.models.svc.cluster.local", PRIVATE),
        ("https://8.8.8.8/v1", "8.8.8.8"),
        ("https://api.openai.com/v1", "openai.com"),
        ("https://eu.api.openai.com", "openai.com"),
        ("https://api.anthropic.com", "anthropic.com"),
        ("https://llm.example.co.uk", "example.co.uk"),
        ("https://other.co.uk", "other.co.uk"),
    ],
)
def test_whose_a_backend_is(url: str, expected: str) -> None:
    assert party(url) == expected


def backend(url: str, **more: str) -> BackendSettings:
    return BackendSettings(url=url, **more)  # type: ignore[arg-type]


OWN, OWN_TOO = backend("http://10.0.0.1"), backend("http://10.0.0.2")
OPENAI, ANTHROPIC = backend("https://api.openai.com"), backend("https://api.anthropic.com")


def test_clients_keys_are_shown_to_one_party_at_most() -> None:
    assert backends_with_client_key((OPENAI,)) == {OPENAI}
    assert backends_with_client_key((OWN, OWN_TOO)) == {OWN, OWN_TOO}
    assert backends_with_client_key((OPENAI, ANTHROPIC)) == backends_with_client_key((OWN, OPENAI)) == frozenset()
    keyed = backend("https://api.openai.com", api_key_env="K")
    assert backends_with_client_key((OWN, keyed)) == {OWN}, "which has a key of its own sees no other"
    named = backend("https://api.anthropic.com", client_key="pass")
    assert backends_with_client_key((OWN, named)) == {named}, "they are for whom the operator says"
    assert backends_with_client_key((backend("http://10.0.0.1", client_key="drop"), OPENAI)) == {OPENAI}
    assert "openai.com, this network" in warning(Settings(backend=(OWN, OPENAI)))
    assert warning(Settings(backend=(OWN, OWN_TOO))) == warning(Settings(backend=(OWN, named))) == ""


def ok() -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def keys_in(request: bytes) -> dict[bytes, bytes]:
    lines = [line.partition(b": ") for line in request.partition(b"\r\n\r\n")[0].split(b"\r\n")]
    return {name: value for name, _, value in lines if name in (b"authorization", b"x-api-key", b"api-key")}


def test_a_client_key_goes_to_those_it_is_for_alone() -> None:
    """Two addresses on one machine stand for two parties: one may get the keys, the other may not."""
    with raw_engine(answer(ok())) as one, raw_engine(answer(ok())) as other:
        config = f'[[backend]]\nurl = "{one.url}"\nclient_key = "pass"\n[[backend]]\nurl = "{other.url}"\n'
        with Gateway(config=config) as gateway:
            for _ in range(6):
                assert ask(gateway.address, CHAT, BODY, THEIRS).status == 200
        assert one.requests and other.requests
        assert all(keys_in(request)[b"authorization"] == b"Bearer theirs" for request in one.requests)
        assert all(keys_in(request) == {} for request in other.requests)


def test_a_failover_takes_no_key_along() -> None:
    fails = b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n"
    with raw_engine(answer(fails)) as one, raw_engine(answer(ok())) as other:
        config = f'[[backend]]\nurl = "{one.url}"\nclient_key = "pass"\nweight = 100.0\n[[backend]]\nurl = "{other.url}"\n'
        with Gateway(config=config) as gateway:
            for _ in range(4):
                assert ask(gateway.address, CHAT, BODY, THEIRS).status == 200
        assert one.requests and [keys_in(request) for request in other.requests] == [{}] * 4


def test_a_key_in_a_websockets_handshake_is_a_key() -> None:
    """A browser can send a key nowhere else."""
    refused = b"HTTP/1.1 403 X\r\ncontent-length: 0\r\n\r\n"
    with raw_engine(answer(refused)) as one, raw_engine(answer(refused)) as other:
        config = f'[[backend]]\nurl = "{one.url}"\nclient_key = "pass"\n[[backend]]\nurl = "{other.url}"\n'
        with Gateway(config=config) as gateway:
            for _ in range(4):
                with Client(gateway.address) as client:
                    client.send(
                        b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                        b"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.sk-theirs, x\r\n\r\n"
                    )
                    assert client.read_answer().status == 403
        assert one.requests and other.requests
        assert all(b"realtime, openai-insecure-api-key.sk-theirs, x\r\n" in request for request in one.requests)
        assert all(b"protocol: realtime, x\r\n" in request and b"sk-theirs" not in request for request in other.requests)


def test_backends_of_one_network_get_it_as_before() -> None:
    with StandIn(token_s=0.001) as one, StandIn(token_s=0.001) as other, Gateway(one.url, other.url) as gateway:
        for _ in range(4):
            ask(gateway.address, CHAT, BODY, THEIRS)
        for engine in (one, other):
            assert {row["headers"]["authorization"] for row in engine.seen()} == {"Bearer theirs"}


def test_a_key_that_is_not_set_is_an_error_at_start(tmp_path: Path) -> None:
    path = tmp_path / "hangup.toml"
    path.write_text('[[backend]]\nurl = "http://127.0.0.1:9"\napi_key_env = "NO_SUCH_KEY"\n')
    env = {k: v for k, v in os.environ.items() if k != "NO_SUCH_KEY"}
    command = [sys.executable, "-m", "hangup", "serve", "--port", "0", "--admin-port", "0", "--config", str(path)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode != 0 and "NO_SUCH_KEY, which is not set in the environment" in ran.stderr
    assert "Traceback" not in ran.stderr
    doctor = [sys.executable, "-m", "hangup", "doctor", "http://127.0.0.1:9", "--api-key-env", "NO_SUCH_KEY"]
    ran = subprocess.run(doctor, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode != 0 and "NO_SUCH_KEY, which is not set" in ran.stderr and "Traceback" not in ran.stderr
    assert load(path).settings.backend, "the file alone is in order"


def test_a_key_that_is_not_set_refuses_a_reload() -> None:
    with StandIn(token_s=0.001) as engine, Gateway(config=f'[[backend]]\nurl = "{engine.url}"\n') as gateway:
        assert gateway.config_path is not None
        gateway.config_path.write_text(f'[[backend]]\nurl = "{engine.url}"\napi_key_env = "NO_SUCH_KEY"\n')
        gateway.signal(signal.SIGHUP)
        gateway.find_line("NO_SUCH_KEY, which is not set")
        assert ask(gateway.address, CHAT, BODY).status == 200


@pytest.mark.parametrize("key", ["sk-1\nx-evil: 1", "sk-1\n", "sk 1", "schlüssel", "", "a\x00b"])
def test_keys_that_would_break_a_request_are_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "hangup.toml"
    path.write_text('[[backend]]\nurl = "http://127.0.0.1:9"\napi_key_env = "K"\n')
    with pytest.raises(ConfigError, match="api_key_env names K") as caught:
        load(path, {"K": key})
    assert not key or key not in str(caught.value)
    assert load(path, {"K": "sk-proj_1.2~x"}).warnings == ()


@pytest.mark.parametrize(
    ("engine", "headers", "expected"),
    [
        ("anthropic-hosted", {"anthropic-version": "2023-06-01"}, {b"x-api-key": b"ours"}),
        ("anthropic-hosted", {}, {b"x-api-key": b"ours"}),
        ("openai-hosted", {"anthropic-version": "2023-06-01"}, {b"authorization": b"Bearer ours"}),
        ("openai", {}, {b"authorization": b"Bearer ours"}),
        ("openai", {"anthropic-version": "2023-06-01"}, {b"authorization": b"Bearer ours", b"x-api-key": b"ours"}),
    ],
)
def test_a_provider_gets_its_key_as_it_wants_it(engine: str, headers: dict[str, str], expected: dict[bytes, bytes]) -> None:
    assert engine in ADAPTERS
    with raw_engine(answer(ok())) as raw:
        config = f'[[backend]]\nurl = "{raw.url}"\nengine = "{engine}"\napi_key_env = "K"\n'
        with Gateway(config=config, env={"K": "ours"}) as gateway:
            assert ask(gateway.address, CHAT, BODY, {**THEIRS, **headers}).status == 200
        assert keys_in(raw.requests[-1]) == expected
