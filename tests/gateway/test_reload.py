"""A reload takes effect completely or not at all, and reports which; a start that fails explains why in one line."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trustme

from hangup.cli.keys import digest_of
from support.processes import Gateway, StandIn
from support.raw import Client, ask
from support.raw_engine import DONE, HEAD, LAST, chunk, event, raw_engine
from support.waiting import wait_until

CHAT = "/v1/chat/completions"
BODY = {"messages": [], "max_tokens": 1}
TENANT = '[[tenant]]\nname = "{}"\nkey_sha256 = ["{}"]\n'


def backend(url: str, more: str = "") -> str:
    return f'[[backend]]\nurl = "{url}"\nname = "b"\n{more}\n'


def reload(gateway: Gateway, text: str, event: str) -> dict[str, object]:
    assert gateway.config_path is not None
    before = len([row for row in gateway.log() if row["event"] == event])
    gateway.config_path.write_text(text)
    gateway.signal(signal.SIGHUP)
    wait_until(lambda: len([row for row in gateway.log() if row["event"] == event]) > before, what=event)
    return [row for row in gateway.log() if row["event"] == event][-1]


def statuses(gateway: Gateway) -> tuple[int, int, int]:
    """Return the statuses for the old key, for the new key, and without a key."""
    keys: list[dict[str, str]] = [{"x-api-key": "old"}, {"x-api-key": "new"}, {}]
    one, two, three = (ask(gateway.address, CHAT, BODY, headers).status for headers in keys)
    return one, two, three


BAD = {
    "nothing in it": ("", "no backend"),
    "cut before the tenants": ("{backend}", "no tenant"),
    "a tenant without a key": ('{backend}[[tenant]]\nname = "t"\nkey_sha256 = []\n', "has no key"),
    "no such ca_file": ('{backend}{new}[[backend]]\nurl = "https://c:1"\nca_file = "/nowhere/ca.pem"\n', "ca_file"),
    "a ca_file that is none": ('{backend}{new}[[backend]]\nurl = "https://c:1"\nca_file = "/etc/hostname"\n', "ca_file"),
    "an open quote in spawn": ('{backend}{new}[[backend]]\nurl = "http://c:1"\nspawn = "run \'it"\n', "No closing quotation"),
    "an open quote in restart_command": (
        '{backend}{new}[[backend]]\nurl = "http://c:1"\nrestart_command = "run \'it"\n',
        "No closing quotation",
    ),
    "nested": ("{backend}{new}x = " + "[" * 5000 + "]" * 5000 + "\n", "nested too deeply"),
    "a number of 5000 digits": ("port = " + "9" * 5000 + "\n{backend}{new}", "not valid TOML"),
    "a host that is no ASCII": ('{backend}{new}[[backend]]\nurl = "http://höst:1"\n', "xn--"),
    "a key in a home that nobody has": (
        '{backend}{new}[[backend]]\nurl = "http://c:1"\napi_key_file = "~no-such-user/key"\n',
        "nobody knows the home directory",
    ),
    "one backend twice": ('{backend}{new}[[backend]]\nurl = "{url}/v1"\n', "configured twice"),
    "one name twice": ('{backend}{new}[[backend]]\nurl = "http://b"\n', "two backends named b"),
}


class TestReload:
    @pytest.fixture(scope="module")
    @staticmethod
    def keyed(engine: StandIn) -> object:
        with Gateway(config=backend(engine.url) + TENANT.format("t", digest_of("old"))) as gateway:
            yield gateway

    @pytest.mark.parametrize("name", BAD)
    def test_refused_as_a_whole(self, keyed: Gateway, engine: StandIn, name: str) -> None:
        text, problem = BAD[name]
        new = TENANT.format("t", digest_of("new"))
        text = text.replace("{backend}", backend(engine.url)).replace("{new}", new).replace("{url}", engine.url)
        row = reload(keyed, text, "config_reload_failed")
        assert problem in str(row["problems"])
        assert statuses(keyed) == (200, 401, 401), "the old configuration is in effect, all of it"
        keyed.find_line("the configuration was not reloaded")

    def test_taken_as_a_whole(self, engine: StandIn) -> None:
        with Gateway(config=backend(engine.url) + TENANT.format("t", digest_of("old"))) as gateway:
            row = reload(gateway, backend(engine.url) + TENANT.format("u", digest_of("new")), "config_reloaded")
            assert (row["backends"], row["tenants"], row["needs_restart"]) == (["b"], ["u"], [])
            assert statuses(gateway) == (401, 200, 401)

    def test_without_traces_their_headers_do_not_matter(self, engine: StandIn) -> None:
        with Gateway(config=backend(engine.url), env={"OTEL_EXPORTER_OTLP_HEADERS": "of another program"}) as gateway:
            reload(gateway, backend(engine.url), "config_reloaded")

    def test_limits_that_need_a_restart_are_named(self, engine: StandIn) -> None:
        with Gateway(config=backend(engine.url)) as gateway:
            row = reload(gateway, "[limits]\nended_calls_max = 5\n" + backend(engine.url), "config_reloaded")
            assert row["needs_restart"] == ["ended_calls_max"]
            again = reload(gateway, "[limits]\nended_calls_max = 5\n# again\n" + backend(engine.url), "config_reloaded")
            assert again["needs_restart"] == ["ended_calls_max"], "it still needs a restart"


def test_heartbeats_that_are_turned_off_end() -> None:
    """Those of running calls as well: a pause of 0 s between them would fill the client's connection."""
    prefill = threading.Event()

    def script(sock: socket.socket, request: bytes) -> None:
        prefill.wait(120)
        sock.sendall(HEAD + chunk(event("a") + event("", '"stop"') + DONE) + LAST)

    with raw_engine(script) as engine, Gateway(config="heartbeat_s = 0.05\n" + backend(engine.url)) as gateway:
        with Client(gateway.address) as client:
            client.chat(stream=True)
            client.read_until(b": hangup\n\n")
            reload(gateway, backend(engine.url), "config_reloaded")
            for _ in range(10):  # the event loop turns meanwhile
                gateway.ready()
            prefill.set()
            rest = client.read_until(b"[DONE]")
        assert b'"content":"a"' in rest and rest.count(b": hangup") < 1000, "none since the reload"


@pytest.mark.parametrize("workers", [1, 2])
def test_an_admin_port_that_others_reach_keeps_its_token(engine: StandIn, workers: int, tmp_path: Path) -> None:
    """Only a restart changes the address that the port listens on, whatever the new configuration names."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    rest = f"workers = {workers}\n{backend(engine.url)}"
    with Gateway(config=f'admin_host = "0.0.0.0"\nadmin_token_file = "{token}"\n{rest}') as gateway:
        assert gateway.config_path is not None
        gateway.config_path.write_text(f'admin_host = "127.0.0.1"\n{rest}')
        gateway.signal(signal.SIGHUP)
        gateway.find_line("configuration reloaded|the configuration was not reloaded")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{gateway.admin_url}/api/calls", timeout=60)
        gateway.find_line("the admin port on 0.0.0.0 is reachable from other hosts, so it needs a token")
        same = f'admin_host = "127.0.0.1"\nadmin_token_file = "{token}"\n{rest}'
        assert reload(gateway, same, "config_reloaded")["needs_restart"] == ["admin_host"]


@pytest.mark.parametrize(("workers", "slots"), [(1, 0), (2, 0), (2, 4)])
def test_a_replaced_file_is_reloaded_without_a_signal(workers: int, slots: int, tmp_path: Path) -> None:
    """As the kubelet does it with a ConfigMap: the file is a link into a folder, which is a link that is swapped."""
    with StandIn() as old, StandIn() as new:
        head = f"port = 0\nadmin_port = 0\nworkers = {workers}\nconfig_watch_s = 0.1\njobs = 'none'\n"
        for name, engine in (("one", old), ("two", new)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "hangup.toml").write_text(head + backend(engine.url, f"slots = {slots}"))
        (tmp_path / "..data").symlink_to("one")
        (tmp_path / "hangup.toml").symlink_to("..data/hangup.toml")
        with Gateway(env={"HANGUP_CONFIG": str(tmp_path / "hangup.toml")}) as gateway:
            wait_until(lambda: gateway.ready() == 200, what="a ready gateway")
            assert ask(gateway.address, CHAT, BODY).status == 200 and old.seen() and not new.seen()
            (tmp_path / "..data_tmp").symlink_to("two")
            (tmp_path / "..data_tmp").rename(tmp_path / "..data")
            wait_until(lambda: [row for row in gateway.log() if row["event"] == "config_reloaded"], what="a reload")
            wait_until(lambda: ask(gateway.address, CHAT, BODY).status == 200 and new.seen(), what="a call at the new backend")


class TestTls:
    @pytest.fixture
    def authority(self) -> trustme.CA:
        return trustme.CA()

    def issue(self, authority: trustme.CA, folder: Path) -> tuple[str, str]:
        issued = authority.issue_cert("localhost", "127.0.0.1")
        cert, key = folder / "cert.pem", folder / "key.pem"
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
        return str(cert), str(key)

    def serial(self, gateway: Gateway) -> str:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with Client(gateway.address, tls=context) as client:
            assert isinstance(client.sock, ssl.SSLSocket)
            shown = client.sock.getpeercert(binary_form=True)
        assert shown is not None
        return ssl.DER_cert_to_PEM_cert(shown)

    def test_a_renewed_certificate_is_taken(self, engine: StandIn, authority: trustme.CA, tmp_path: Path) -> None:
        cert, key = self.issue(authority, tmp_path)
        text = f'tls_cert = "{cert}"\ntls_key = "{key}"\n' + backend(engine.url)
        with Gateway(config=text) as gateway:
            old = self.serial(gateway)
            self.issue(authority, tmp_path)
            assert reload(gateway, text, "config_reloaded")["needs_restart"] == []
            renewed = self.serial(gateway)
            assert renewed != old
            Path(key).write_text("not a key")
            assert "tls_cert" in str(reload(gateway, text, "config_reload_failed")["problems"])
            assert self.serial(gateway) == renewed

    def test_handshakes_count_and_have_header_s(self, engine: StandIn, authority: trustme.CA, tmp_path: Path) -> None:
        cert, key = self.issue(authority, tmp_path)
        with Gateway(engine.url, tls_cert=cert, tls_key=key, connections_max=3, header_s=4) as gateway:
            before = gateway.open_files()
            silent = [Client(gateway.address) for _ in range(12)]
            wait_until(lambda: gateway.metrics()["hangup_connections_refused_total"] == 9)
            assert gateway.open_files() <= before + 4
            assert all(client.closed_within() for client in silent), "none may be silent for longer than header_s"
            for client in silent:
                client.sock.close()
            self.serial(gateway)

    def test_those_that_leave_in_the_midst_leave_nothing(self, engine: StandIn, authority: trustme.CA, tmp_path: Path) -> None:
        cert, key = self.issue(authority, tmp_path)
        with Gateway(engine.url, tls_cert=cert, tls_key=key, connections_max=8) as gateway:
            hello = ssl.MemoryBIO()
            context = ssl.create_default_context()
            client_side = context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
            with pytest.raises(ssl.SSLWantReadError):
                client_side.do_handshake()
            data = hello.read()
            for sent in (b"", data[:20], data, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 50):
                for leave in (Client.fin, Client.reset):
                    for _ in range(5):
                        client = Client(gateway.address)
                        client.send(sent)
                        leave(client)
            wait_until(lambda: gateway.metrics()["hangup_connections"] == 0)
            for _ in range(8):
                self.serial(gateway)
            assert gateway.metrics()["hangup_connections_refused_total"] <= 42
            assert not [line for line in gateway.stderr_lines if "Traceback" in line]


START = {
    "ca_file": (["--config", "{file}"], '[[backend]]\nurl = "https://c:1"\nca_file = "/nowhere"\n'),
    "log": (["--log", "/tmp", "--upstream", "http://127.0.0.1:9"], ""),
    "ledger": (["--ledger", "/proc/nowhere/ledger.sqlite", "--upstream", "http://127.0.0.1:9"], ""),
    "ledger_in_a_home": (["--ledger", "~no-such-user/ledger.sqlite", "--upstream", "http://127.0.0.1:9"], ""),
    "~no-such-user/jobs": (["--jobs", "~no-such-user/jobs", "--upstream", "http://127.0.0.1:9"], ""),
    "spawn": (["--spawn", "run 'it"], ""),
    "tenant": (["--config", "{file}"], '[[backend]]\nurl = "http://c:1"\n[[tenant]]\nname = "t"\n'),
    "cert": (["--tls-cert", "/nowhere", "--tls-key", "/nowhere", "--upstream", "http://127.0.0.1:9"], ""),
}


@pytest.mark.parametrize("name", START)
def test_a_start_that_cannot_be_says_why_in_a_line(name: str, tmp_path: Path) -> None:
    flags, text = START[name]
    file = tmp_path / "hangup.toml"
    file.write_text(text)
    ports = ["--port", "0", "--admin-port", "0"]
    command = [sys.executable, "-m", "hangup", "serve", *ports, *(flag.replace("{file}", str(file)) for flag in flags)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("hangup: ")
    assert name.split("_", maxsplit=1)[0] in done.stderr


def test_config_check_sees_what_a_start_would(tmp_path: Path) -> None:
    for text, problem in (
        ('[[backend]]\nurl = "http://c:1"\n[[tenant]]\nname = "t"\n', "no key"),
        ('[[backend]]\nurl = "http://c:1"\nengine = "vlm"\n', "unknown engine"),
        ('[[backend]]\nurl = "https://c:1"\nca_file = "/nowhere"\n', "ca_file"),
    ):
        file = tmp_path / "hangup.toml"
        file.write_text(text)
        command = [sys.executable, "-m", "hangup", "config", "check", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert problem in done.stderr


def test_the_ledger_is_for_its_owner_alone(engine: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    before = os.umask(0o022)
    try:
        with Gateway(engine.url, ledger=str(path)) as gateway:
            assert ask(gateway.address, CHAT, BODY).status == 200
            wait_until(path.exists)
            for file in tmp_path.iterdir():
                assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    finally:
        os.umask(before)
