"""The configuration: precedence, origins, and errors that name the place, the expected value and the nearest valid name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hangup.config.load import load
from hangup.errors import ConfigError


def hangup(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HANGUP_")}
    command = [sys.executable, "-m", "hangup", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=clean | (env or {}), timeout=60, check=False)


def problems(tmp_path: Path, text: str, **options: Any) -> str:
    path = tmp_path / "hangup.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(path, **options)
    return str(error.value).replace(str(path), "FILE")


def test_defaults_protect() -> None:
    settings = load().settings
    assert (settings.host, settings.port, settings.admin_host, settings.admin_port) == ("127.0.0.1", 8080, "127.0.0.1", 8081)
    assert settings.limits.client_silence_s == 15
    assert settings.limits.write_stall_s == 30
    assert settings.limits.output_tokens_max > 0


def test_precedence(tmp_path: Path) -> None:
    path = tmp_path / "hangup.toml"
    path.write_text("port = 1\nadmin_port = 2\n[limits]\ngap_s = 3\ntotal_s = 4\n")
    env = {"HANGUP_ADMIN_PORT": "20", "HANGUP_TOTAL_S": "40", "HANGUP_QUEUE_S": "50", "OTHER": "x"}
    loaded = load(path, env, {"total_s": "400"})
    assert (loaded.settings.port, loaded.origin("port")) == (1, f"{path}:1:1")
    assert (loaded.settings.admin_port, loaded.origin("admin_port")) == (20, "HANGUP_ADMIN_PORT")
    assert (loaded.settings.limits.gap_s, loaded.origin("gap_s")) == (3.0, f"{path}:4:1")
    assert (loaded.settings.limits.total_s, loaded.origin("total_s")) == (400.0, "--total-s")
    assert (loaded.settings.limits.queue_s, loaded.origin("queue_s")) == (50.0, "HANGUP_QUEUE_S")
    assert (loaded.settings.host, loaded.origin("host")) == ("127.0.0.1", "default")


def test_upstreams(tmp_path: Path) -> None:
    path = tmp_path / "hangup.toml"
    path.write_text('[[backend]]\nurl = "http://a:1"\n')
    assert [b.url for b in load(path).settings.backend] == ["http://a:1"]
    assert [b.url for b in load(path, {"HANGUP_UPSTREAM": "http://b:1, http://c:1"}).settings.backend] == [
        "http://b:1",
        "http://c:1",
    ]
    flagged = load(path, {"HANGUP_UPSTREAM": "http://b:1"}, upstreams=["http://d:1"], engine="openai").settings.backend
    assert [(b.url, b.engine) for b in flagged] == [("http://d:1", "openai")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prot = 1\n", "FILE:1:1: unknown setting prot\n  hint: did you mean port?"),
        ("\n\n[limits]\ngapp_s = 3\n", "FILE:4:1: unknown setting gapp_s\n  hint: did you mean gap_s?"),
        ("gap_s = 3\n", "FILE:1:1: gap_s belongs in [limits]"),
        ("port = 'x'\n", "FILE:1:1: port: expected a whole number from 0 to 65535, got 'x'"),
        ("port = 70000\n", "FILE:1:1: port: expected a whole number from 0 to 65535, got 70000"),
        ("port = 1.5\n", "FILE:1:1: port: expected a whole number"),
        ("port = true\n", "FILE:1:1: port: expected a whole number"),
        ("assemble = 1\n", "FILE:1:1: assemble: expected true or false, got 1"),
        ("half_close = 'hangpu'\n", "expected one of hangup, allow, got 'hangpu'\n  hint: did you mean hangup?"),
        ("[limits]\ngap_s = -1\n", "FILE:2:1: gap_s: expected a number of seconds, 0.01 or more, got -1"),
        ("[limits]\ngap_s = nan\n", "FILE:2:1: gap_s: expected a number of seconds"),
        ("[limits]\nbody_bytes_max = '1'\n[[backend]]\nurl='x'\n", "FILE:4:1: url: expected http://host[:port]"),
        ("limits = 5\n", "FILE:1:1: limits must be a table"),
        ("backend = 5\n", "backend must be an array of tables: [[backend]]"),
        (
            "[[backend]]\nurl = 'http://a'\n[[backend]]\nurll = 'b'\n",
            "FILE:4:1: unknown backend setting urll\n  hint: did you mean url?",
        ),
        ("[[backend]]\nurl = 'ftp://a'\n", "FILE:2:1: url: expected http://host[:port] or https://host[:port], got 'ftp://a'"),
        (
            "[[backend]]\nurl = 'dns+ftp://a'\n",
            "FILE:2:1: url: expected http://host[:port] or https://host[:port], got 'ftp://a'",
        ),
        ("[[backend]]\nurl = 'dns+http://10.0.0.1:80'\n", "has an address where dns+ needs a name; leave dns+ out"),
        ("[[backend]]\nurl = 'dns+http://_llm._tcp.a:80'\n", "names an SRV record, which has the port: leave :80 out"),
        ("[[backend]]\nurl = 'dns+http://a:1'\nspawn = 'x'\n", "spawn: hangup cannot start the engines behind a dns+ name"),
        (
            "dns_server = 'ns.example.com'\n",
            "dns_server: expected an IP address, with :port if it is not 53, got",
        ),
        ("[[backend]]\nurl = 'http://u:p@a'\n", "a URL must not contain a user or password"),
        ("[[backend]]\nurl = 'http://a:99999'\n", "is not a valid URL"),
        ("[[backend]]\nurl = 'http://a:1/a b'\n", "FILE:2:1: url: 'http://a:1/a b' has spaces or control characters"),
        ('[[backend]]\nurl = "http://a:1/\\r\\nx: y"\n', "has spaces or control characters"),
        ("[[backend]]\nurl='http://a'\nhealth_path='/he alth'\n", "health_path: expected a path like /health, without spaces"),
        ("[[backend]]\nurl='http://a'\nmodels=['a', ' b']\n", "models: expected names without spaces around them"),
        ("[[backend]]\nurl='http://a'\nhealth_path='health'\n", "health_path: expected a path like /health, without spaces"),
        ("[[backend]]\nurl='http://a'\n[[backend]]\nurl='http://a/'\n", "http://a is configured twice"),
        (
            "[[backend]]\nurl='http://a:1'\n[[backend]]\nurl='http://a:1/v1'\n",
            "http://a:1 is configured twice",
        ),
        ("[[backend]]\nurl='http://a'\nname='b:1'\n[[backend]]\nurl='http://b:1'\n", "there are two backends named b:1"),
        ("[[backend]]\nurl='http://a'\napis=['opanai']\n", "FILE:3:1: unknown API opanai\n  hint: did you mean openai?"),
        ("[[backend]]\nurl='http://a'\nmodels='x'\n", "FILE:3:1: models: expected a list of strings, got 'x'"),
        ("[[backend]]\nurl='http://a'\nmodels=['']\n", "FILE:3:1: models: expected a list of strings"),
        ("[[backend]]\nurl='http://a'\nclient_key='on'\n", "FILE:3:1: client_key: expected one of auto, pass, drop, got 'on'"),
        ("[[backend]]\nurl='http://a'\napi_key_env='K'\nclient_key='pass'\n", "not both"),
        ("[[alias]]\nname='a'\n", "model: expected the name of a model, got nothing"),
        ("[[alias]]\nname='a'\nmodle='b'\n", "FILE:3:1: unknown alias setting modle\n  hint: did you mean model?"),
        ("[[alias]]\nname='a'\nmodel='b'\n[[alias]]\nname='a'\nmodel='c'\n", "FILE:5:1: there are two aliases named a"),
        ("[[alias]]\nname='a'\nmodel='b'\n[[alias]]\nname='b'\nmodel='c'\n", "alias a points to b, which is an alias itself"),
        ("[[tenant]]\nname='a'\nkey_sha256=['abc']\n", "FILE:3:1: key_sha256: expected 64 hex digits"),
        ("[[tenant]]\nname='a b'\n", "FILE:2:1: name: expected letters"),
        ("[[tenant]]\nname='a'\n[[tenant]]\nname='a'\n", "FILE:4:1: there are two tenants named a"),
        ("[[tenant]]\nname='a'\nlimits={gap=1}\n", "FILE:3:1: unknown per-call limit gap\n  hint: did you mean gap_s?"),
        ("[[tenant]]\nname='a'\n[tenant.limits]\nheader_s=1\n", "header_s is a limit of the whole gateway: set it in [limits]"),
        ("[[tenant]]\nname='a'\nlimits={gap_s='x'}\n", "gap_s: expected a number of seconds"),
        ("[limits]\ntotal_s = 1" + "0" * 400 + "\n", "total_s: expected a number of seconds"),
        ("[limits]\njson_elements_max = 1" + "0" * 40 + "\n", "json_elements_max: expected a whole number"),
        ('log = "a\\u0000b"\n', "log: expected a string"),
        ("[[backend]]\nurl='http://a:1'\nca_file = \"\\u0000\"\n", "ca_file: expected a string"),
        ("[[route]]\npath='v1'\n", "FILE:2:1: path: expected an absolute path"),
        ("[[route]]\npath='/a/../b'\n", "FILE:2:1: path: expected an absolute path"),
        ("tls_cert = 'a'\n", "set both tls_cert and tls_key, or neither"),
        ("a = \n", "FILE:1:5: not valid TOML: Invalid value"),
        ("port = 1\nport = 2\n", "FILE:2:9: not valid TOML: Cannot overwrite a value"),
    ],
)
def test_problems(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in problems(tmp_path, text)


def test_all_problems_at_once(tmp_path: Path) -> None:
    text = problems(tmp_path, "prot = 1\nadmin_port = 'x'\n[limits]\ngap_s = -1\n", env={"HANGUP_TOTAL_S": "x"})
    assert all(word in text for word in ("prot", "admin_port", "gap_s", "HANGUP_TOTAL_S"))


def test_environment_problems(tmp_path: Path) -> None:
    text = problems(tmp_path, "", env={"HANGUP_PORT": "x", "HANGUP_UPSTREAM": "nowhere"})
    assert "HANGUP_PORT: port: expected a whole number from 0 to 65535, got 'x'" in text
    assert "HANGUP_UPSTREAM: expected http://host[:port]" in text


def test_unknown_environment_variables_warn() -> None:
    loaded = load(None, {"HANGUP_GAP": "1", "HANGUP_SOMETHING_ELSE": "x", "HANGUP_PORT": "7"})
    assert loaded.settings.port == 7
    assert loaded.warnings == (
        "HANGUP_GAP: unknown environment variable, ignored; did you mean HANGUP_GAP_S?",
        "HANGUP_SOMETHING_ELSE: unknown environment variable, ignored; `hangup config show` lists the settings",
    )


def test_variables_that_the_configuration_names_are_known(tmp_path: Path) -> None:
    path = tmp_path / "hangup.toml"
    path.write_text('admin_token_env = "HANGUP_SECRET"\n[[backend]]\nurl = "http://a"\napi_key_env = "HANGUP_KEY_OF_A"\n')
    env = {"HANGUP_SECRET": "s", "HANGUP_KEY_OF_A": "k", "HANGUP_URL": "http://x", "HANGUP_API_KEY": "k"}
    assert load(path, env).warnings == ()


# What Services named `hangup` and `hangup-admin` put into every pod of their namespace.
KUBERNETES = {
    "HANGUP_SERVICE_HOST": "10.96.0.12",
    "HANGUP_SERVICE_PORT": "8080",
    "HANGUP_SERVICE_PORT_HTTP": "8080",
    "HANGUP_SERVICE_PORT_ADMIN": "8081",
    "HANGUP_PORT": "tcp://10.96.0.12:8080",
    "HANGUP_PORT_8080_TCP": "tcp://10.96.0.12:8080",
    "HANGUP_PORT_8080_TCP_PROTO": "tcp",
    "HANGUP_PORT_8080_TCP_PORT": "8080",
    "HANGUP_PORT_8080_TCP_ADDR": "10.96.0.12",
    "HANGUP_ADMIN_SERVICE_HOST": "10.96.0.13",
    "HANGUP_ADMIN_SERVICE_PORT": "8081",
    "HANGUP_ADMIN_PORT": "tcp://10.96.0.13:8081",
    "HANGUP_ADMIN_PORT_8081_TCP": "tcp://10.96.0.13:8081",
    "HANGUP_ADMIN_PORT_8081_TCP_ADDR": "10.96.0.13",
}


def test_what_kubernetes_makes_for_a_service_is_ignored() -> None:
    loaded = load(None, KUBERNETES)
    assert (loaded.settings.port, loaded.settings.admin_port, loaded.warnings) == (8080, 8081, ())
    assert (loaded.origin("port"), loaded.origin("admin_port")) == ("default", "default")
    assert load(None, KUBERNETES, {"port": "9"}).settings.port == 9


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "nothing.toml")


class TestCommands:
    def test_check(self, tmp_path: Path) -> None:
        good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
        good.write_text('[[backend]]\nurl = "http://127.0.0.1:8000"\n')
        bad.write_text("prot = 1\n")
        done = hangup("config", "check", str(good))
        assert (done.returncode, done.stdout) == (0, f"{good}: ok (1 backend)\n")
        failed = hangup("config", "check", str(bad))
        assert failed.returncode == 2
        assert failed.stdout == ""
        assert "did you mean port?" in failed.stderr

    def test_show(self, tmp_path: Path) -> None:
        path = tmp_path / "hangup.toml"
        path.write_text('port = 9\n[[backend]]\nurl = "http://a"\n')
        done = hangup("config", "show", "--json", "--config", str(path), "--gap-s", "7", env={"HANGUP_TOTAL_S": "70"})
        shown = json.loads(done.stdout)
        assert shown["settings"]["port"] == {"value": 9, "origin": f"{path}:1:1"}
        assert shown["settings"]["limits.gap_s"] == {"value": 7.0, "origin": "--gap-s"}
        assert shown["settings"]["limits.total_s"] == {"value": 70.0, "origin": "HANGUP_TOTAL_S"}
        assert shown["settings"]["limits.queue_s"]["origin"] == "default"
        assert shown["backend"][0]["url"] == "http://a"
        text = hangup("config", "show", "--config", str(path)).stdout
        assert any(line.split() == ["port", "9", f"{path}:1:1"] for line in text.splitlines())

    def test_an_unknown_variable_does_not_stop_a_command(self) -> None:
        done = hangup("config", "show", env={**KUBERNETES, "HANGUP_TOTAL": "1"})
        assert done.returncode == 0
        assert done.stderr == (
            "hangup: warning: HANGUP_TOTAL: unknown environment variable, ignored; did you mean HANGUP_TOTAL_S?\n"
        )

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("serve", "--port", "x"), "--port: port: expected a whole number"),
            (("serve", "--upstream", "nowhere"), "--upstream: expected http://host"),
            (("serve", "--config", "/nowhere.toml"), "cannot be read"),
            (
                ("serve", "--port", "0", "--admin-port", "0", "--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.pem"),
                "cannot use tls_cert",
            ),
        ],
    )
    def test_nothing_starts_half_configured(self, arguments: tuple[str, ...], expected: str) -> None:
        done = hangup(*arguments)
        assert done.returncode in (1, 2)
        assert expected in done.stderr
        assert "Traceback" not in done.stderr

    def test_unknown_engine(self, tmp_path: Path) -> None:
        path = tmp_path / "hangup.toml"
        path.write_text('[[backend]]\nurl = "http://a"\nengine = "vlm"\n')
        done = hangup("serve", "--config", str(path))
        assert done.returncode == 2
        assert "unknown engine 'vlm'" in done.stderr

    def test_port_in_use(self) -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as taken:
            done = hangup("serve", "--port", str(taken.getsockname()[1]), "--admin-port", "0")
            assert done.returncode == 1
            assert "cannot listen on 127.0.0.1" in done.stderr
            assert "hint: the port is in use" in done.stderr

    def test_help(self) -> None:
        for arguments in (("--help",), ("serve", "--help"), ("config", "--help"), ("standin", "--help"), ("key", "--help")):
            done = hangup(*arguments)
            assert done.returncode == 0
            assert "usage: hangup" in done.stdout
        assert "examples:" in hangup("serve", "--help").stdout

    def test_no_command(self) -> None:
        done = hangup()
        assert done.returncode == 2
        assert "commands" in done.stdout

    def test_engines(self) -> None:
        assert "openai" in hangup("engines").stdout
