"""Checks that settings fit together, to find whatever would fail at a start or in a reload before anything is changed."""

from __future__ import annotations

import ipaddress
import re
import shlex
import ssl
from collections import Counter
from urllib.parse import urlsplit

from hangup.config.addresses import is_discovered, is_web_address
from hangup.config.locate import Path
from hangup.config.paths import expanded
from hangup.config.schema import BackendSettings, Settings
from hangup.config.secrets import SERVERS, sources

_TARGET = re.compile(r"/[!-~]*")  # what may stand in a request line
_BUSY_FROM = re.compile(r"engine|nvml(:[0-9]+(,[0-9]+)*)?|https?://[^\s#]+(#[0-9]+(,[0-9]+)*)?")
SHARED_STATE = re.compile(r"(rediss?(\+sentinel|\+cluster)?|unix)://")
HAS_PASSWORD = re.compile(r"://[^/@]*:[^@]+@|[?&]password=")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PORT_MAX = 65535
_PORTS = {"http": 80, "https": 443}


def problems(settings: Settings) -> list[tuple[Path, str]]:
    """Return all problems, each with the setting that it is about."""
    found: list[tuple[Path, str]] = []
    if bool(settings.tls_cert) != bool(settings.tls_key):
        given = "tls_cert" if settings.tls_cert else "tls_key"
        found.append(((given,), "set both tls_cert and tls_key, or neither"))
    if settings.dns_server and dns_server_of(settings.dns_server) is None:
        expected = "expected an IP address, with :port if it is not 53"
        found.append((("dns_server",), f"dns_server: {expected}, got {settings.dns_server!r}"))
    found += [
        ((name,), f"{name}: expected http://host[:port] or https://host[:port]")  # it may hold a key, so it is not shown
        for name in ("alarm_webhook", "otlp_endpoint")
        if (url := getattr(settings, name)) and not is_web_address(url)
    ]
    found += _shared_state_problems(settings)
    found += _store_problems(settings)
    found += _password_problems(settings)
    if settings.port == settings.admin_port != 0 and settings.host == settings.admin_host:
        found.append((("admin_port",), f"port and admin_port are both {settings.port}; choose another for one of them"))
    urls, names = Counter[str](), Counter[str]()
    for index, backend in enumerate(settings.backend):
        url, name = _plain(backend.url), backend.name or default_name(backend.url)
        urls[url] += 1
        if urls[url] == 2:
            found.append((("backend", index, "url"), f"{url} is configured twice"))
        if urls[url] == 1:
            names[name] += 1
            if names[name] == 2:
                found.append((("backend", index, "name"), f"there are two backends named {name}"))
        found += [(("backend", index, key), f"{key}: {problem}") for key, problem in backend_problems(backend)]
    return found


def _shared_state_problems(settings: Settings) -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    if not settings.shared_state:
        return found
    if not SHARED_STATE.match(settings.shared_state):
        expected = "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
        found.append((("shared_state",), f"shared_state: expected {expected}"))
    if not re.fullmatch(r"[\w.-]+", settings.shared_state_name):
        said = f"shared_state_name: expected letters, digits, dots and dashes, got {settings.shared_state_name!r}"
        found.append((("shared_state_name",), said))
    if settings.peer_host in ("0.0.0.0", "::"):  # noqa: S104 (not to listen there)
        found.append((("peer_host",), f"peer_host: others cannot reach {settings.peer_host}; give an address of this host"))
    if settings.peer_port and settings.workers > 1 and settings.peer_port + 2 * settings.workers > _PORT_MAX + 1:
        said = f"peer_port: {settings.workers} workers use {2 * settings.workers} ports from there, and the last is {_PORT_MAX}"
        found.append((("peer_port",), said))
    return found


def _store_problems(settings: Settings) -> list[tuple[Path, str]]:
    """Return values that would become the name of a strange file, and one file for two stores."""
    found: list[tuple[Path, str]] = []
    for name in ("jobs", "ledger"):
        value = getattr(settings, name)
        if (scheme := _SCHEME.match(value)) and scheme[1] not in ("postgresql", "postgres"):
            found.append(((name,), f"{name}: expected a file or postgresql://…, got an address that begins with {scheme[0]}"))
    if settings.ledger in ("auto", "none", "provider"):
        instead = 'leave it out, or set it to "", to keep the ledger in memory'
        found.append((("ledger",), f"ledger: expected a file or postgresql://…, got {settings.ledger!r}; {instead}"))
    elif settings.jobs and settings.ledger and not found and _same_file(settings.jobs, settings.ledger):
        found.append((("ledger",), "ledger: jobs has the same file; give each its own"))
    return found


def _same_file(one: str, other: str) -> bool:
    if "://" in one or "://" in other:
        return False
    try:
        return expanded(one).resolve() == expanded(other).resolve()
    except (OSError, RuntimeError):
        return False


def _password_problems(settings: Settings) -> list[tuple[Path, str]]:
    """Return passwords that nobody would be asked for, and those that are given twice."""
    found: list[tuple[Path, str]] = []
    for name in SERVERS:
        address = getattr(settings, name)
        for setting in sources(settings, f"{name}_password"):
            if "://" not in address:
                found.append(((setting,), f"{setting}: {name} is not the address of a server, so it needs no password"))
            elif HAS_PASSWORD.search(address):
                found.append(((setting,), f"{setting}: the address in {name} has a password as well; leave one of them out"))
    return found


def backend_problems(backend: BackendSettings) -> list[tuple[str, str]]:
    """Return what is wrong with one backend, each with the name of its setting."""
    found = []
    at = backend.busy_from.partition("#")[0]
    if not _BUSY_FROM.fullmatch(backend.busy_from) or ("://" in at and not is_web_address(at)):
        found.append(("busy_from", f"expected engine, nvml, nvml:0,1 or an http:// address, got {backend.busy_from!r}"))
    if backend.health_path and not _TARGET.fullmatch(backend.health_path):
        found.append(("health_path", f"expected a path like /health, without spaces, got {backend.health_path!r}"))
    expected = "expected names without spaces around them, with * for any text"
    found += [("models", f"{expected}, got {model!r}") for model in backend.models if model != model.strip()]
    for name in ("spawn", "restart_command"):
        command = getattr(backend, name)
        try:
            if command and not shlex.split(command):
                found.append((name, f"the command {command!r} is empty"))
        except ValueError as error:
            found.append((name, f"{error} in {command!r}"))
    if is_discovered(backend.url) and backend.spawn:
        found.append(("spawn", "hangup cannot start the engines behind a dns+ name; give each an http:// address"))
    if backend.ca_file:
        try:
            ssl.create_default_context(cafile=backend.ca_file)
        except OSError as error:  # includes ssl.SSLError
            found.append(("ca_file", f"cannot use {backend.ca_file}: {error.strerror or error}"))
    return found


def dns_server_of(text: str) -> tuple[str, int] | None:
    """Return the address and port of a DNS server, or None if the text is neither."""
    try:
        parts = urlsplit(f"//{text if text.count(':') < 2 or text.startswith('[') else f'[{text}]'}")
        return str(ipaddress.ip_address(parts.hostname or "")), parts.port or 53
    except ValueError:
        return None


def default_name(url: str) -> str:
    """Return the name of a backend without a configured one: its address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return url
    host = f"[{host}]" if ":" in host else host
    authority = host if port is None or port == _PORTS.get(parts.scheme) else f"{host}:{port}"
    return authority + _without_version(parts.path)


def _plain(url: str) -> str:
    return _without_version(url)


def _without_version(path: str) -> str:
    return path.rstrip("/").removesuffix("/v1")
