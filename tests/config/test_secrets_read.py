"""Secrets come from a variable, a file or a command; what cannot be used is refused, and never shown."""

from __future__ import annotations

import json
import pickle
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from hangup.config import Settings
from hangup.config.load import load
from hangup.config.secret import Secret
from hangup.errors import ConfigError

KEY = "planted-key"
BACKEND = '[[backend]]\nurl = "http://127.0.0.1:9"\n'


def loaded(tmp_path: Path, text: str, **env: str) -> Settings:
    path = tmp_path / "hangup.toml"
    path.write_text(text)
    return load(path, env).settings


def refused(tmp_path: Path, text: str, **env: str) -> str:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, text, **env)
    said = str(error.value).replace(str(tmp_path), "")
    assert KEY not in said
    return said


def printing(text: str, code: int = 0) -> str:
    """Return a command that prints the text, as a string of TOML."""
    program = f"import sys; print({text!r}); print({text!r}, file=sys.stderr); sys.exit({code})"
    return json.dumps(shlex.join([sys.executable, "-c", program]))


@pytest.mark.parametrize("content", [KEY, f"{KEY}\n", f"{KEY}\r\n"])
def test_from_a_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_bytes(content.encode())
    settings = loaded(tmp_path, f'admin_token_file = "{tmp_path}/key"\n{BACKEND}api_key_file = "{tmp_path}/key"\n')
    assert settings.backend[0].key.reveal() == settings.admin_token.reveal() == KEY


def test_from_a_command(tmp_path: Path) -> None:
    text = f"otlp_headers_command = {printing('a=b')}\n{BACKEND}api_key_command = {printing(KEY)}\n"
    settings = loaded(tmp_path, text, OTEL_EXPORTER_OTLP_HEADERS="c=d")
    assert (settings.backend[0].key.reveal(), settings.otlp_headers.reveal()) == (KEY, "a=b")


def test_from_a_variable(tmp_path: Path) -> None:
    text = f'admin_token_env = "T"\n{BACKEND}api_key_env = "K"\n'
    settings = loaded(tmp_path, text, T="token", K=KEY, OTEL_EXPORTER_OTLP_HEADERS="c=d")
    found = [secret.reveal() for secret in (settings.admin_token, settings.backend[0].key, settings.otlp_headers)]
    assert found == ["token", KEY, "c=d"]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ('api_key_file = "/nowhere/key"', ":3:1: api_key_file: cannot read /nowhere/key: No such file or directory"),
        ('api_key_file = "/dev/null"', ":3:1: api_key_file: /dev/null is empty"),
        ('api_key_file = "/dev/zero"', ":3:1: api_key_file: /dev/zero holds more than 65536 bytes"),
        ('api_key_command = "no-such-program"', ":3:1: api_key_command: cannot run no-such-program: No such file"),
        ('api_key_command = "true"', ":3:1: api_key_command: true printed nothing"),
        ("api_key_command = '\"'", ":3:1: api_key_command: No closing quotation"),
        ('api_key_command = " "', ":3:1: api_key_command: the command is empty"),
        (f"api_key_command = {printing(KEY, 3)}", " exited with status 3"),
        (f"api_key_command = {printing(KEY + ' x')}", ":3:1: api_key_command: the key contains a space or a character"),
        (f"api_key_command = {printing(KEY + chr(10) + 'x')}", ":3:1: api_key_command: the key contains a line break"),
        ('api_key_env = "UNSET"', ":3:1: api_key_env names UNSET, which is not set in the environment"),
        ('api_key_env = "K"\napi_key_file = "/dev/null"', ":4:1: set one of api_key_env, api_key_file"),
        ('api_key_file = "/dev/null"\nclient_key = "pass"', ':4:1: set api_key_file or client_key = "pass", not both'),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, setting: str, expected: str) -> None:
    assert expected in refused(tmp_path, f"{BACKEND}{setting}\n", K=KEY)


def test_a_command_that_hangs(tmp_path: Path) -> None:
    text = f'[limits]\nsecret_command_s = 0.2\n{BACKEND}api_key_command = "sleep 60"\n'
    assert ":5:1: api_key_command: sleep timed out after 0.2 s (secret_command_s)" in refused(tmp_path, text)


def test_a_command_does_not_get_the_secrets_of_others(tmp_path: Path) -> None:
    script = tmp_path / "show"
    script.write_text(f"#!{sys.executable}\nimport os\nprint('-'.join(sorted(os.environ)))\n")
    script.chmod(0o700)
    text = f'admin_token_env = "T"\n{BACKEND}api_key_command = "{script}"\n[[backend]]\nurl="http://a"\napi_key_env = "K"\n'
    env = {"T": "t", "K": "k", "KEPT": "1", "HANGUP_JOBS": "postgresql://u:p@h/d", "HANGUP_API_KEY": "x", "PGPASSWORD": "p"}
    env["OTEL_EXPORTER_OTLP_TRACES_HEADERS"] = "x-key=planted"
    shown = loaded(tmp_path, text, **env).backend[0].key.reveal().split("-")
    assert "KEPT" in shown and not {"T", "K", "HANGUP_JOBS", "HANGUP_API_KEY", "PGPASSWORD"} & set(shown)
    assert "OTEL_EXPORTER_OTLP_TRACES_HEADERS" not in shown


def test_a_password_on_the_command_line_is_a_warning() -> None:
    loaded = load(None, {}, {"jobs": "postgresql://u:planted@h/d"})
    (warning,) = loaded.warnings
    assert "--jobs shows a password" in warning and "HANGUP_JOBS" in warning and "planted" not in warning
    for odd in ("postgresql://u:planted@[h/d", "postgresql://h/d?password=planted", "postgresql://u:pl/planted@h/d"):
        (warning,) = load(None, {}, {"ledger": odd}).warnings
        assert "--ledger shows a password" in warning and "planted" not in warning
    (warning,) = load(None, {}, {"shared_state": "redis://:planted@h:1/0"}).warnings
    assert "--shared-state shows a password" in warning and "HANGUP_SHARED_STATE" in warning and "planted" not in warning
    assert load(None, {"HANGUP_JOBS": "postgresql://u:p@h/d"}, {"ledger": "postgresql://h/d?passfile=/x"}).warnings == ()


@pytest.mark.parametrize("show", [repr, str, "{}".format, "{0!r:>20}".format, lambda secret: str([secret])])
def test_a_secret_is_not_shown(show: Any) -> None:
    assert KEY not in show(Secret(KEY))
    settings = Settings(admin_token=Secret(KEY), otlp_headers=Secret(KEY))
    assert KEY not in show(settings)
    assert pickle.loads(pickle.dumps(settings)).admin_token == Secret(KEY), "workers get it over their own socket"
    with pytest.raises(TypeError):
        json.dumps(Secret(KEY))
