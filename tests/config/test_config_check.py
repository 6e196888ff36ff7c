"""`hangup config check` finds everything that `serve` would refuse or could not use, with its line and column."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from hangup.cli import startup_check
from hangup.cli.main import main
from hangup.config.toml_text import example
from hangup.errors import HangupError
from hangup.gateway.store.database import Database
from hangup.gateway.store.jobs.schema import MIGRATIONS
from hangup.gateway.store.ledger_tables import LedgerFile

BACKEND = '[[backend]]\nurl = "http://127.0.0.1:9"\n'


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("UNSET", raising=False)


def check(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return what the command says about a file that has problems, or "" if it has none."""
    path = tmp_path / "hangup.toml"
    path.write_text(text)
    code = main(["config", "check", str(path), *options])
    said = capsys.readouterr().err.replace(str(path), "FILE")
    assert (code == 2) == bool(said), said
    return said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{BACKEND}  engine = "vlm"\n', "FILE:3:3: unknown engine 'vlm'\n  hint: did you mean vllm?"),
        (f'{BACKEND}api_key_env = "UNSET"\n', "FILE:3:1: api_key_env names UNSET, which is not set in the environment"),
        ('admin_token_env = "UNSET"\n', "FILE:1:1: admin_token_env names UNSET, which is not set in the environment"),
        ('admin_host = "0.0.0.0"\n', "FILE:1:1: the admin port on 0.0.0.0 is reachable from other hosts, so it needs a token"),
        ('host = "192.0.2.1"\n', "FILE:1:1: cannot listen on 192.0.2.1:8080: "),
        ("port = 7000\nadmin_port = 7000\n", "FILE:2:1: port and admin_port are both 7000"),
        ('tls_cert = "/nowhere.pem"\ntls_key = "/nowhere.pem"\n', "FILE:1:1: cannot use tls_cert and tls_key: "),
        ('log = "/nowhere/hangup.log"\n', "FILE:1:1: log: the folder /nowhere does not exist"),
        ('log = "/"\n', "FILE:1:1: log: / is a folder, not a file"),
        ('ledger = "/dev/null/ledger.db"\n', "FILE:1:1: ledger: /dev/null is not a folder"),
        ('jobs = "/etc/hostname"\n', "FILE:1:1: jobs: /etc/hostname is not a SQLite file"),
        (f'{BACKEND}spawn = "no-such-program --port {{port}}"\n', "FILE:3:1: spawn: the program no-such-program was not found"),
        (f'{BACKEND}spawn = "true --port {{prot}}"\n', "FILE:3:1: spawn: {prot} is not filled in; known are {host}, {name}"),
        (f'{BACKEND}restart_command = "nothing-here"\n', "FILE:3:1: restart_command: the program nothing-here was not found"),
        (f'{BACKEND}spawn_log = "/nowhere/engine.log"\n', "FILE:3:1: spawn_log: the folder /nowhere does not exist"),
        (f"{BACKEND}ca_file = '/nowhere'\n", "FILE:3:1: ca_file: cannot use /nowhere: "),
        ('log = "${LOGS}/hangup.log"\n', "FILE:1:1: log: ${LOGS} is not replaced by a value"),
        (f'{BACKEND}name = "os.environ/NAME"\n', "FILE:3:1: name: os.environ/NAME is not replaced by a value"),
        (
            f"{BACKEND}models = ['a', 'b-*']\n[[alias]]\nname = 'x'\nmodel = 'c'\n",
            "FILE:6:1: no backend has the model c",
        ),
        ('shared_state = "redis://h"\n', "FILE:1:1: shared_state: the embedded engine lives in the gateway's process"),
        (f'shared_state = "redis://h:x"\n{BACKEND}', "FILE:1:1: shared_state: redis://h:x is no address of a store"),
        (
            f"shared_state = 'redis://h'\n{BACKEND}spawn = 'true'\n",
            "FILE:1:1: shared_state: each gateway would spawn http://127.0.0.1:9",
        ),
        ('jobs = "postgresql://u:p@a@h/d"\n', "FILE:1:1: cannot use postgresql://u:***@h/d: the address cannot be read"),
        ('ledger = "postgresql://h/d?colour=red"\n', "FILE:1:1: cannot use postgresql://h/d?colour=red: invalid URI query"),
        ("a = [1,\n", "FILE:2:1: not valid TOML: Invalid value"),
        ("[limits]\nxyzzy = 1\n", "FILE:2:1: unknown setting xyzzy\n  hint: `hangup config example` prints all "),
        ('jobs_password_file = "/nowhere"\n', "FILE:1:1: jobs_password_file: jobs is not the address of a server"),
        (
            'ledger = "postgresql://h/d"\nledger_password_file = "/nowhere"\n',
            "FILE:2:1: ledger_password_file: cannot read /nowhere: No such file or directory",
        ),
        (
            'shared_state = "redis://h"\nshared_state_password_env = "UNSET"\n',
            "FILE:2:1: shared_state_password_env names UNSET, which is not set in the environment",
        ),
        (f'host = "{"a" * 64}.example"\n', "cannot listen on " + "a" * 64 + ".example:8080: not a valid host name"),
        (
            "host = '0.0.0.0'\nport = 7000\nadmin_port = 7000\n",
            "FILE:3:1: port and admin_port are both 7000, and 0.0.0.0 and 127.0.0.1 overlap",
        ),
        (f'log = "/tmp/{"a" * 300}"\n', "FILE:1:1: log: /tmp/" + "a" * 300 + ": File name too long"),
        ('ledger = "/dev/null"\n', "FILE:1:1: ledger: /dev/null is not a file"),
        (
            'ledger = "mysql://u:planted@h/d"\n',
            "FILE:1:1: ledger: expected a file or postgresql://…, got an address",
        ),
        ('jobs = "postgresql+psycopg://h/d"\n', "FILE:1:1: jobs: expected a file or postgresql://…, got an address"),
        (
            'ledger = "none"\n',
            "FILE:1:1: ledger: expected a file or postgresql://…, got 'none'; leave it out, or set it to \"\"",
        ),
        ('jobs = "/tmp/a/../x.db"\nledger = "/tmp/x.db"\n', "FILE:2:1: ledger: jobs has the same file; give each its own"),
        ('jobs = "postgresql://h:x/d"\n', "FILE:1:1: cannot use postgresql://h:x/d: the port is not a number"),
        (
            'ledger = "postgresql://h/d?sslmode=on"\n',
            "FILE:1:1: cannot use postgresql://h/d?sslmode=on: sslmode must be",
        ),
        ("allowed_hosts = 'a.example, https://b.example'\n", "FILE:1:1: allowed_hosts: expected names of hosts, without https"),
        (
            "allowed_hosts = '*.example'\n",
            "FILE:1:1: allowed_hosts: expected names of hosts, without https://, port or wildcard",
        ),
        ("admin_names = 'a.example:8081'\n", "FILE:1:1: admin_names: expected names of hosts"),
        ("websocket_origins = 'page.example'\n", "FILE:1:1: websocket_origins: expected https://page.example, without a path"),
        ("websocket_origins = 'https://page.example/'\n", "FILE:1:1: websocket_origins: expected https://page.example"),
        ("ledger = '$HOME/ledger.db'\n", "FILE:1:1: ledger: $HOME is not replaced by a value"),
        (f"{BACKEND}spawn = 'sleep 9 | cat'\n", "FILE:3:1: spawn: | is handed to the program: there is no shell"),
        (f"{BACKEND}restart_command = 'true && true'\n", "FILE:3:1: restart_command: && is handed to the program"),
        ("[[backend]]\nurl = 'http://192.0.2.1:1'\nspawn = 'true'\n", "FILE:3:1: spawn: the engine would run on this machine"),
        ("[[backends]]\nurl = 'http://a'\n", "FILE:1:1: unknown setting backends\n  hint: did you mean backend?"),
        ("[[limits]]\ngap_s = 1\n", "FILE:1:1: limits must be a table: [limits]"),
        (
            "[[backend]]\nurl = 'http://1.2.3.400'\n",
            "FILE:2:1: url: 'http://1.2.3.400': 1.2.3.400 is neither",
        ),
        ("[[backend]]\nurl = 'dns+http://a..b'\n", "FILE:2:1: url: 'http://a..b': a..b is neither the name of a host nor"),
        (
            "[[backend]]\nurl = 'http://a/v1/chat/completions'\n",
            "an endpoint; leave /v1/chat/completions out",
        ),
        (
            "alarm_webhook = 'https://hooks.example:x/planted'\n",
            "FILE:1:1: alarm_webhook: expected http://host",
        ),
        ("otlp_endpoint = 'http://'\n", "FILE:1:1: otlp_endpoint: expected http://host[:port] or https://host[:port]"),
        (f"{BACKEND}busy_from = 'http://h:99999/metrics'\n", "FILE:3:1: busy_from: expected engine, nvml, nvml:0,1 or an http"),
        (
            'shared_state = "redis://:planted@h"\nshared_state_password_command = "true"\n',
            "FILE:2:1: shared_state_password_command: the address in shared_state has a password as well",
        ),
    ],
)
def test_problems_of_this_machine(tmp_path: Path, text: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = check(tmp_path, text, capsys)
    assert expected in said
    assert "planted" not in said


def test_a_file_in_another_encoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hangup.toml").write_bytes("port = 1\n# für\n".encode("latin-1"))
    assert main(["config", "check", str(tmp_path / "hangup.toml")]) == 2
    assert "hangup.toml:2:4: not valid TOML: the file is not in UTF-8" in capsys.readouterr().err


def test_packages_that_are_not_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup_check, "_installed", lambda package: False)
    stores = 'jobs = "postgresql://u:planted@h/d"\nledger = "postgres://h/d"\nshared_state = "redis://:planted@h:1/0"\n'
    text = f'{stores}{BACKEND}busy_from = "nvml:0"\n'
    said = check(tmp_path, text, capsys)
    for expected in ("FILE:1:1: jobs: PostgreSQL needs", "FILE:2:1: ledger: PostgreSQL", "FILE:6:1: busy_from: nvml:0 needs"):
        assert expected in said
    assert "FILE:3:1: shared_state: it needs an extra package\n  hint: pip install 'hangup[redis]'" in said
    assert "planted" not in said


def test_headers_for_the_collector(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "planted")
    said = check(tmp_path, 'otlp_endpoint = "http://127.0.0.1:4318"\n', capsys)
    assert "FILE:1:1: otlp_headers: expected name=value,name=value" in said
    assert "planted" not in said


def test_variables_of_opentelemetry_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    said = check(tmp_path, 'otlp_endpoint = "http://127.0.0.1:4318"\n', capsys)
    assert "FILE:1:1: OTEL_EXPORTER_OTLP_TIMEOUT: expected a number, got 'soon'" in said


def test_a_store_of_a_newer_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, table in (("jobs", "job"), ("ledger", "spent")):
        path = tmp_path / f"{name}.sqlite"
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
            db.execute(f"CREATE TABLE {table} (b)")
        db.close()
        said = check(tmp_path, f'{name} = "{path}"\n', capsys)
        assert f"FILE:1:1: {name}: {path} was written by a newer version of hangup (schema 99, here " in said
    assert len(MIGRATIONS) < 99


def test_a_store_of_another_program_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE bookmarks (b)")
    before = path.read_bytes()
    for name in ("jobs", "ledger"):
        said = check(tmp_path, f'{name} = "{path}"\n', capsys)
        assert f"FILE:1:1: {name}: {path} is a SQLite file, but not one of this store: it has other tables" in said
        with pytest.raises(HangupError, match="it has other tables"):
            Database(str(path), MIGRATIONS) if name == "jobs" else LedgerFile(str(path), 1 << 20)
    assert path.read_bytes() == before


def test_a_key_with_a_passphrase(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """OpenSSL would ask for it at the terminal, and a service would hang or fail with "Invalid argument"."""
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    kind, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "key.pem").write_bytes(key.private_bytes(kind, form, serialization.BestAvailableEncryption(b"planted")))
    said = check(tmp_path, f'tls_cert = "{tmp_path}/cert.pem"\ntls_key = "{tmp_path}/key.pem"\n', capfd)
    assert "FILE:1:1: cannot use tls_key: it is encrypted" in said and "pass phrase" not in said


def test_a_log_that_nobody_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    text = f'log = "{tmp_path}/pipe"\n'
    assert f"FILE:1:1: log: nobody reads from the pipe {tmp_path}/pipe" in check(tmp_path, text, capsys)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert check(tmp_path, text, capsys) == ""
    finally:
        os.close(reader)


def test_homes(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    text = f'log = "~/hangup.log"\n{BACKEND}spawn_log = "~/nowhere/engine.log"\nca_file = "~/ca.pem"\n'
    said = check(tmp_path, text, capsys)
    assert f"ca_file: cannot use {tmp_path}/ca.pem: No such file" in said
    said = check(tmp_path, text.replace("ca_file", "#ca_file"), capsys)
    assert f"FILE:4:1: spawn_log: the folder {tmp_path}/nowhere does not exist" in said and "FILE:1" not in said


def test_jobs_that_would_be_turned_off_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    path = tmp_path / "hangup.toml"
    path.write_text(BACKEND)
    assert main(["config", "check", str(path)]) == 0
    assert "hangup: warning: jobs would be turned off: /dev/null is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[[backend]]\nurl = 'http://localhost:8080'\n",
            "FILE:2:1: http://localhost:8080 is the port that hangup itself listens",
        ),
        ("host = '0.0.0.0'\n[[backend]]\nurl = 'http://127.0.0.1:8081/v1'\n", "FILE:3:1: http://127.0.0.1:8081/v1 is the port"),
        ("log = 'stderr'\n", "FILE:1:1: the log goes to a file named stderr; - means stdout"),
    ],
)
def test_what_is_odd_but_possible_is_a_warning(
    tmp_path: Path, text: str, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hangup.toml"
    path.write_text(text)
    assert main(["config", "check", str(path)]) == 0
    assert f"hangup: warning: {expected}" in capsys.readouterr().err.replace(str(path), "FILE")


@pytest.mark.parametrize(
    "text",
    [
        "allowed_hosts = 'a.example, [::1], localhost, *'\nadmin_names = 'hangup-admin'\n",
        "websocket_origins = 'https://a.example:8443, *'\n",
        "[[backend]]\nurl = 'http://[::1]:9'\n[[backend]]\nurl = 'http://a_b:9/base/v1'\n",
        f"{BACKEND}spawn = \"sh -c 'sleep 9 | cat'\"\n",
        "jobs = 'jobs.db'\nledger = 'ledger.db'\nalarm_webhook = 'https://u:p@hooks.example/a?b=c'\n",
    ],
)
def test_what_serve_can_use_is_no_problem(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, text, capsys) == ""


def test_all_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = check(tmp_path, f'log = "/nowhere/x"\n{BACKEND}engine = "vlm"\nspawn = "nothing-here"\n', capsys)
    assert re.findall(r"FILE:(\d+):1", said) == ["4", "1", "5"]


def test_a_setting_of_the_environment_is_named_by_its_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGUP_LOG", "/nowhere/hangup.log")
    assert "hangup: HANGUP_LOG: log: the folder /nowhere" in check(tmp_path, BACKEND, capsys)


def test_the_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANGUP_PORT", "x")
    text = f'log = "/nowhere/x"\n{BACKEND}api_key_env = "UNSET"\nspawn = "nothing-here"\n'
    assert check(tmp_path, text, capsys, "--file-only") == ""
    assert "FILE:3:1: unknown engine" in check(tmp_path, f'{BACKEND}engine = "x"\n', capsys, "--file-only")


def test_the_example_is_valid_and_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = example()
    assert check(tmp_path, text, capsys) == ""
    values = {"url": '"http://a:1"', "path": '"/a"', "key_sha256": f'["{"0" * 64}"]'}
    text = re.sub(r"^#(\[\[|[a-z_0-9]+ = )", r"\1", text, flags=re.M)
    for name, value in values.items():
        text = re.sub(rf"^{name} = .*", f"{name} = {value}", text, flags=re.M)
    text = re.sub(r'^name = ""', 'name = "a"', text, flags=re.M)
    text = re.sub(r'^model = ""', 'model = "b"', text, flags=re.M)
    assert check(tmp_path, text, capsys, "--file-only") == ""


def test_the_schema_knows_what_the_loader_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each name of the schema is a name for the loader, and the other way round: the example has all of them."""
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    names = set(re.findall(r"^#?([a-z_0-9]+) = ", example(), re.M))
    assert set(_names(schema)) - {"limits", "backend", "tenant", "route", "alias"} == names - {"limits"}
    assert schema["additionalProperties"] is False
    backend = schema["properties"]["backend"]["items"]
    assert "vllm" in backend["properties"]["engine"]["enum"] and backend["required"] == ["url"]
    assert schema["properties"]["limits"]["properties"]["gap_s"] | {"description": ""} == {
        "type": "number",
        "minimum": 0.01,
        "default": 60.0,
        "description": "",
    }


def _names(schema: dict[str, Any]) -> list[str]:
    found = []
    for name, each in schema.get("properties", {}).items():
        found += [name, *_names(each), *_names(each.get("items", {}))]
    return found
