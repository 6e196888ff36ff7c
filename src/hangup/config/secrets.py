"""Reads secrets: backends' keys, the admin token, headers for the collector, passwords of servers that keep data. Each comes
from an environment variable, a file or a command, and is read again by a reload.

A secret appears in no message, and `Secret` shows it to nobody who does not ask for it by `reveal`.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hangup.config.paths import expanded
from hangup.config.secret import Secret

if TYPE_CHECKING:
    from hangup.config.schema import BackendSettings, Settings

SERVERS = ("ledger", "jobs", "shared_state")  # settings that may be the address of a server, which may want a password
OF_THE_GATEWAY = ("admin_token", "otlp_headers", *(f"{name}_password" for name in SERVERS))
_BYTES_MAX = 64 * 1024
_OF_OTHER_COMMANDS = {"HANGUP_ADMIN_TOKEN", "HANGUP_API_KEY"}
_OF_OTHER_PROGRAMS = {"PGPASSWORD", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"}  # hangup uses them as well
_PLAIN_URLS = {"HANGUP_URL", "HANGUP_ADMIN_URL", "HANGUP_UPSTREAM"}


class SecretProblem(Exception):
    """A secret cannot be read or used. `setting` names where it should come from; the text never contains the secret."""

    def __init__(self, setting: str, text: str) -> None:
        super().__init__(text)
        self.setting = setting


def sources(table: BackendSettings | Settings, name: str) -> dict[str, str]:
    """Return the settings that say where a secret comes from, such as api_key_file, as far as they are set."""
    named = {f"{name}_{kind}": str(getattr(table, f"{name}_{kind}")) for kind in ("env", "file", "command")}
    return {setting: value for setting, value in named.items() if value}


def read(
    table: BackendSettings | Settings, name: str, env: Mapping[str, str], hidden: frozenset[str], timeout_s: float
) -> Secret:
    """Return a secret, empty if it has no source; raise `SecretProblem` if it cannot be read. `hidden`: variables that
    a command does not get."""
    given = sources(table, name)
    if name == "otlp_headers" and len(given) > 1:  # its variable has a default
        del given["otlp_headers_env"]
    if len(given) > 1:
        raise SecretProblem(list(given)[-1], f"set one of {', '.join(given)}")
    for setting, source in given.items():
        if setting.endswith("_env"):
            return Secret(_from_variable(setting, source, env, optional=name == "otlp_headers"))
        rest = {variable: text for variable, text in env.items() if variable not in hidden}
        value = _from_file(setting, source) if setting.endswith("_file") else _from_command(setting, source, rest, timeout_s)
        if not value:
            where = f"{source} is empty" if setting.endswith("_file") else f"{shlex.split(source)[0]} printed nothing"
            raise SecretProblem(setting, f"{setting}: {where}")
        return Secret(value)
    return Secret()


def _from_variable(setting: str, variable: str, env: Mapping[str, str], *, optional: bool) -> str:
    value = env.get(variable, "")
    if not value and not optional:
        raise SecretProblem(setting, f"{setting} names {variable}, which is not set in the environment")
    return value


def _from_file(setting: str, name: str) -> str:
    try:
        with expanded(name).open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise SecretProblem(setting, f"{setting}: cannot read {name}: {error.strerror or error}") from None
    return _text(setting, name, content)


def _from_command(setting: str, command: str, env: Mapping[str, str], timeout_s: float) -> str:
    """Run the command without a shell, and return what it prints. What it says on stderr is not shown: it may be the key."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SecretProblem(setting, f"{setting}: {error}") from None
    if not words:
        raise SecretProblem(setting, f"{setting}: the command is empty")
    try:
        done = subprocess.run(  # noqa: S603 - from the configuration
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, env=dict(env)
        )
    except subprocess.TimeoutExpired:
        raise SecretProblem(setting, f"{setting}: {words[0]} timed out after {timeout_s:g} s (secret_command_s)") from None
    except OSError as error:
        raise SecretProblem(setting, f"{setting}: cannot run {words[0]}: {error.strerror or error}") from None
    if done.returncode:
        raise SecretProblem(setting, f"{setting}: {words[0]} exited with status {done.returncode}")
    return _text(setting, words[0], done.stdout)


def _text(setting: str, source: str, content: bytes) -> str:
    if len(content) > _BYTES_MAX:
        raise SecretProblem(setting, f"{setting}: {source} holds more than {_BYTES_MAX} bytes")
    try:
        return content.decode("utf-8").strip("\r\n")
    except UnicodeDecodeError:
        raise SecretProblem(setting, f"{setting}: {source} holds no text") from None


def key_of(backend: BackendSettings, env: Mapping[str, str], hidden: frozenset[str], timeout_s: float) -> Secret:
    """Return a backend's own key. Raise `SecretProblem` if it is unusable, because otherwise the client's key would be sent."""
    key = read(backend, "api_key", env, hidden, timeout_s)
    if not all("!" <= letter <= "~" for letter in key.reveal()):
        kind = "a line break" if {"\n", "\r"} & set(key.reveal()) else "a space or a character that is not ASCII"
        ((setting, source),) = sources(backend, "api_key").items()
        where = f"{setting} names {source}, whose value" if setting == "api_key_env" else f"{setting}: the key"
        raise SecretProblem(setting, f"{where} contains {kind}")
    return key


def variables_with_secrets(settings: Settings) -> set[str]:
    """Return the variables that the configuration names for secrets."""
    own = {str(getattr(settings, f"{name}_env")) for name in OF_THE_GATEWAY}
    return own | {backend.api_key_env for backend in settings.backend}


def hidden_variables(settings: Settings, backend: BackendSettings | None, env: Mapping[str, str]) -> frozenset[str]:
    """Return the variables that an engine or a command of this backend must not inherit: all that hold a secret, except the
    backend's own key, which its engine may need."""
    named = variables_with_secrets(settings)
    # Addresses of databases and webhooks hold passwords.
    urls = {name for name, value in env.items() if name.startswith("HANGUP_") and "://" in value} - _PLAIN_URLS
    return frozenset((named | urls | _OF_OTHER_COMMANDS | _OF_OTHER_PROGRAMS) - {"", backend.api_key_env if backend else ""})


def environment_without(hidden: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in hidden}


def with_secrets(settings: Settings, env: Mapping[str, str]) -> tuple[Settings, list[tuple[tuple[str | int, ...], str]]]:
    """Return the settings with all secrets read, and the problems, each with the setting that it is about."""
    problems: list[tuple[tuple[str | int, ...], str]] = []
    timeout_s = settings.limits.secret_command_s
    backends = []
    for index, backend in enumerate(settings.backend):
        key = Secret()
        hidden = hidden_variables(settings, backend, env)
        try:
            key = key_of(backend, env, hidden, timeout_s)
        except SecretProblem as problem:
            problems.append((("backend", index, problem.setting), str(problem)))
        backends.append(dataclasses.replace(backend, key=key, hidden_variables=hidden))
    found, hidden = dict[str, Any](), hidden_variables(settings, None, env)
    for name in OF_THE_GATEWAY:
        try:
            found[name] = read(settings, name, env, hidden, timeout_s)
        except SecretProblem as problem:
            problems.append(((problem.setting,), str(problem)))
    return dataclasses.replace(settings, backend=tuple(backends), **found), problems
