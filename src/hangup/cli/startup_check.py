"""Finds what `serve` would refuse at its start, or could not use later, without starting anything.

Ports in use are not reported: the gateway that uses this configuration may be running. Nor are engines, collectors and
databases contacted; `hangup doctor` asks an engine.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import shlex
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from hangup.cli.settings import unknown_engines
from hangup.config import BackendSettings, Settings
from hangup.config.addresses import is_discovered, is_host
from hangup.config.load import Configuration
from hangup.config.locate import Path as Key
from hangup.config.paths import expanded
from hangup.config.schema import LISTS, scalar_fields
from hangup.errors import ConfigError, HangupError
from hangup.gateway import ports
from hangup.gateway.client import sockets
from hangup.gateway.hosts.sharable import check_for_sharing
from hangup.gateway.hosts.store import Store
from hangup.gateway.http.hosts import is_loopback
from hangup.gateway.job_opener import jobs_path
from hangup.gateway.name_resolver import NameResolver
from hangup.gateway.otlp import configured_exporter
from hangup.gateway.store.database import is_of_others
from hangup.gateway.store.jobs.schema import MIGRATIONS
from hangup.gateway.store.ledger_tables import SCHEMA as LEDGER_SCHEMA
from hangup.gateway.store.ledger_tables import VERSION as LEDGER_VERSION
from hangup.gateway.store.postgresql import PostgresConnection, is_postgresql

Problem = tuple[Key, str]
_ANY = ("0.0.0.0", "::")  # noqa: S104 (nothing listens there)
_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")
_PLACEHOLDERS = {"{name}", "{url}", "{host}", "{port}"}
_OF_A_SHELL = {"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1"}
_ORIGIN = re.compile(r"https?://(?P<host>[^/:@]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?")
_FOREIGN = re.compile(r"\$\{\w+\}|\$[A-Z][A-Z0-9_]+|\bos\.environ/\w+|\{\{.*\}\}")  # of a shell, LiteLLM, a template


def problems(config: Configuration) -> list[str]:
    """Return every problem, ready to print."""
    settings = config.settings
    found = [*_addresses(settings), *_files(settings), *_extras(settings), *_servers(settings), *_rest(settings)]
    for index, backend in enumerate(config.settings.backend):
        found += [(("backend", index, name), text) for name, text in _backend(backend)]
    found += _unexpanded(config.settings)
    return unknown_engines(config) + [f"{config.place(key)}: {text}" for key, text in found]


def warnings(config: Configuration) -> list[str]:
    """Return what does not prevent a start."""
    settings = config.settings
    unusable = _job_store(settings) if settings.jobs == "auto" else []
    found = [f'jobs would be turned off: {text}\n  hint: set jobs to a file, or to "none"' for text in unusable]
    if settings.log in ("stdout", "stderr"):
        found.append(f"{config.place(('log',))}: the log goes to a file named {settings.log}; - means stdout")
    return found + [
        f"{config.place(('backend', index, 'url'))}: {backend.url} is the port that hangup itself listens on"
        for index, backend in enumerate(settings.backend)
        if _is_ours(backend.url, settings)
    ]


def _is_ours(url: str, settings: Settings) -> bool:
    """Return whether hangup would send calls to itself. With sockets of systemd, `port` has no meaning, so this is no error."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    ours = ((settings.host, settings.port), (settings.admin_host, settings.admin_port))
    return any(
        port == own and (host == address or (is_loopback(host) and (is_loopback(address) or address in _ANY)))
        for address, own in ours
    )


def _job_store(settings: Settings) -> list[str]:
    path = jobs_path(settings, settings.port)
    return list(_store(path, MIGRATIONS[0], len(MIGRATIONS))) if path and not is_postgresql(path) else []


def _refused(key: str, attempt: Callable[[], object]) -> list[Problem]:
    """Return why the attempt fails, as `serve` would say it."""
    try:
        attempt()
    except ConfigError as error:
        return [((key,), problem) for problem in error.problems]
    except HangupError as error:
        return [((key,), str(error))]
    return []


def _addresses(settings: Settings) -> list[Problem]:
    found = []
    for name, host, port in (("host", settings.host, settings.port), ("admin_host", settings.admin_host, settings.admin_port)):
        try:
            sockets.listen(host, port, settings.limits.client_silence_s).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                found.append(((name,), f"cannot listen on {host}:{port}: {error.strerror or error}"))
    if settings.port == settings.admin_port != 0 and settings.host != settings.admin_host and _overlap(settings):
        addresses = f"{settings.host} and {settings.admin_host}"
        found.append((("admin_port",), f"port and admin_port are both {settings.port}, and {addresses} overlap"))
    return found + _refused("admin_host", lambda: ports.admin_policy(settings))


def _overlap(settings: Settings) -> bool:
    """Return whether a port cannot be opened on both addresses, as on 0.0.0.0 and 127.0.0.1. Tried with a free one: the
    configured one may be in use by a gateway that runs."""
    silence_s = settings.limits.client_silence_s
    try:
        with sockets.listen(settings.host, 0, silence_s) as data:
            sockets.listen(settings.admin_host, data.getsockname()[1], silence_s).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _files(settings: Settings) -> Iterator[Problem]:
    yield from _refused("tls_cert", lambda: ports.server_tls(settings))
    if settings.log not in ("-", "none") and (problem := _not_writable(Path(settings.log), make_folder=False)):
        yield ("log",), f"log: {problem}"
    elif _lacks_reader(Path(settings.log)):
        yield ("log",), f"log: nobody reads from the pipe {settings.log}, and hangup would wait for that"
    if settings.ledger and not is_postgresql(settings.ledger):
        yield from ((("ledger",), f"ledger: {text}") for text in _store(settings.ledger, LEDGER_SCHEMA, LEDGER_VERSION))
    if settings.jobs != "auto":
        yield from ((("jobs",), f"jobs: {text}") for text in _job_store(settings))


def _not_writable(path: Path, *, make_folder: bool) -> str:
    """Return why a file cannot be written, or "". With `make_folder`, hangup makes missing folders."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    except OSError as error:  # the name is too long, or a link leads to itself
        return f"{path}: {error.strerror or error}"
    if stat.S_ISDIR(mode):
        return f"{path} is a folder, not a file"
    if mode:
        return "" if os.access(path, os.W_OK) else f"{path} cannot be written by this user"
    folder = path.absolute().parent
    if not folder.exists() and not make_folder:
        return f"the folder {folder} does not exist"
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is not a folder"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"the folder {folder} cannot be written by this user"


def _lacks_reader(path: Path) -> bool:
    if not path.is_fifo():
        return False
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno == errno.ENXIO
    return False


def _store(name: str, schema: str, newest: int) -> Iterator[str]:
    try:
        path = expanded(name)
    except OSError as error:
        yield str(error)
        return
    if problem := _not_writable(path, make_folder=True):
        yield problem
    elif path.exists() and not path.is_file():
        yield f"{path} is not a file"
    elif path.exists() and path.stat().st_size:
        try:
            # Without SQLite's help: opening the file would write to it or to its write-ahead log.
            with path.open("rb") as file:
                head = file.read(64)
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror or error}"
            return
        version = int.from_bytes(head[60:64])
        if not head.startswith(b"SQLite format 3\0"):
            yield f"{path} is not a SQLite file"
        elif _has_other_tables(path, schema):
            yield f"{path} is a SQLite file, but not one of this store: it has other tables"
        elif version > newest:
            yield f"{path} was written by a newer version of hangup (schema {version}, here {newest})"


def _has_other_tables(path: Path, schema: str) -> bool:
    """Read the file as it is, without its write-ahead log, its locks and any change."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            return is_of_others(db, schema)
    except sqlite3.Error:
        return False  # damaged: opening it in earnest will say how


def _extras(settings: Settings) -> Iterator[Problem]:
    for name in ("jobs", "ledger"):
        if is_postgresql(getattr(settings, name)) and not _installed("psycopg"):
            yield (name,), f"{name}: PostgreSQL needs an extra package\n  hint: pip install 'hangup[postgresql]'"
    if settings.shared_state and not _installed("redis"):
        yield ("shared_state",), "shared_state: it needs an extra package\n  hint: pip install 'hangup[redis]'"
    if settings.otlp_endpoint:
        given = "otlp_protocol" if settings.otlp_protocol != "http/json" else "otlp_endpoint"
        yield from _refused(given, lambda: configured_exporter(settings, os.environ, 1.0))


def _servers(settings: Settings) -> Iterator[Problem]:
    """Addresses of servers that cannot be read. Whether a server answers is not asked."""
    for name in ("jobs", "ledger"):
        if is_postgresql(url := getattr(settings, name)) and _installed("psycopg"):
            yield from _refused(name, PostgresConnection(url, name, ()).check_address)
    if settings.shared_state:
        yield from _refused("shared_state", lambda: check_for_sharing(settings.backend))
        if _installed("redis"):
            yield from _refused("shared_state", lambda: Store(settings.shared_state, settings.shared_state_name, 1.0))


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _rest(settings: Settings) -> Iterator[Problem]:
    if any(is_discovered(backend.url) for backend in settings.backend):
        yield from _refused("dns_server", lambda: NameResolver(settings.dns_server))
    yield from _names(settings)
    if settings.backend and all(backend.models for backend in settings.backend):
        patterns = [pattern for backend in settings.backend for pattern in backend.models]
        for index, alias in enumerate(settings.alias):
            if not any(fnmatchcase(alias.model, pattern) for pattern in patterns):
                yield ("alias", index, "model"), f"no backend has the model {alias.model}: each lists its models, without it"


def _names(settings: Settings) -> Iterator[Problem]:
    """Names that no request can have, so that they would allow nothing."""
    for setting, any_name in (("allowed_hosts", "*"), ("admin_names", ""), ("websocket_origins", "*")):
        for name in (part.strip() for part in getattr(settings, setting).split(",")):
            if setting == "websocket_origins":
                origin = _ORIGIN.fullmatch(name)
                fits, expected = bool(origin and is_host(origin["host"].strip("[]"))), "https://page.example, without a path"
            else:
                fits, expected = is_host(name.strip("[]")), "names of hosts, without https://, port or wildcard"
            if name not in ("", any_name) and not fits:
                yield (setting,), f"{setting}: expected {expected}, got {name!r}"


def _backend(backend: BackendSettings) -> Iterator[tuple[str, str]]:
    for name in ("spawn", "restart_command"):
        command = getattr(backend, name)
        if not command:
            continue
        for word in sorted(set(_PLACEHOLDER.findall(command)) - _PLACEHOLDERS):
            yield name, f"{name}: {word} is not filled in; known are {', '.join(sorted(_PLACEHOLDERS))}"
        for word in sorted(set(shlex.split(command)) & _OF_A_SHELL):
            yield name, f"{name}: {word} is handed to the program: there is no shell\n  hint: sh -c '…' runs one"
        program = shlex.split(command)[0]
        if not _PLACEHOLDER.search(program) and shutil.which(program) is None:
            yield name, f"{name}: the program {program} was not found, or cannot be run"
    if backend.spawn and not _is_here(backend.url):
        yield "spawn", f"spawn: the engine would run on this machine, but {urlsplit(backend.url).hostname} is another one"
    if backend.spawn_log and (problem := _not_writable(Path(backend.spawn_log), make_folder=False)):
        yield "spawn_log", f"spawn_log: {problem}"
    if backend.busy_from.startswith("nvml") and not _installed("pynvml"):
        yield "busy_from", f"busy_from: {backend.busy_from} needs an extra package\n  hint: pip install 'hangup[nvidia]'"


def _is_here(url: str) -> bool:
    try:
        sockets.listen(urlsplit(url).hostname or "", 0, 1.0).close()
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def _unexpanded(settings: Settings) -> Iterator[Problem]:
    """Find references that other programs replace by a value, while hangup takes them as they are."""
    hint = "\n  hint: hangup replaces nothing inside a value; every setting has a variable of its own, such as HANGUP_PORT"
    strings: list[tuple[Key, object]] = [((f.name,), getattr(settings, f.name)) for f in scalar_fields(Settings)]
    for name, cls in LISTS.items():
        for index, row in enumerate(getattr(settings, name)):
            strings += [((name, index, f.name), getattr(row, f.name)) for f in scalar_fields(cls)]
    for key, value in strings:
        if isinstance(value, str) and (match := _FOREIGN.search(value)):
            yield key, f"{key[-1]}: {match[0]} is not replaced by a value{hint}"
