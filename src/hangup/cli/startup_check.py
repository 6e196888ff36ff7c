"""Finds what `serve` would refuse at its start, or could not use later, without starting anything.

Ports in use are not reported: the gateway that uses this configuration may be running. Nor are engines, collectors and
databases contacted; `hangup doctor` asks an engine.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from hangup.cli.settings import unknown_engines
from hangup.config import BackendSettings, Settings
from hangup.config.check import is_discovered
from hangup.config.load import Configuration
from hangup.config.locate import Path as Key
from hangup.config.paths import expanded
from hangup.config.schema import LISTS, scalar_fields
from hangup.errors import ConfigError, HangupError
from hangup.gateway import ports
from hangup.gateway.client import sockets
from hangup.gateway.hosts.server import check_for_sharing
from hangup.gateway.hosts.store import Store
from hangup.gateway.job_opener import jobs_path
from hangup.gateway.name_resolver import NameResolver
from hangup.gateway.otlp import configured_exporter
from hangup.gateway.store.jobs.schema import MIGRATIONS
from hangup.gateway.store.ledger_tables import VERSION as LEDGER_VERSION
from hangup.gateway.store.postgresql import PostgresConnection, is_postgresql

Problem = tuple[Key, str]
_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")
_PLACEHOLDERS = {"{name}", "{url}", "{host}", "{port}"}
_FOREIGN = re.compile(r"\$\{\w+\}|\bos\.environ/\w+|\{\{.*\}\}")  # of a shell, LiteLLM, a template


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
    unusable = _job_store(config.settings) if config.settings.jobs == "auto" else []
    return [f'jobs would be turned off: {text}\n  hint: set jobs to a file, or to "none"' for text in unusable]


def _job_store(settings: Settings) -> list[str]:
    path = jobs_path(settings, settings.port)
    return list(_store(path, len(MIGRATIONS))) if path and not is_postgresql(path) else []


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
    return found + _refused("admin_host", lambda: ports.admin_policy(settings))


def _files(settings: Settings) -> Iterator[Problem]:
    yield from _refused("tls_cert", lambda: ports.server_tls(settings))
    if settings.log not in ("-", "none") and (problem := _not_writable(Path(settings.log), make_folder=False)):
        yield ("log",), f"log: {problem}"
    if settings.ledger and not is_postgresql(settings.ledger):
        yield from ((("ledger",), f"ledger: {text}") for text in _store(settings.ledger, LEDGER_VERSION))
    if settings.jobs != "auto":
        yield from ((("jobs",), f"jobs: {text}") for text in _job_store(settings))


def _not_writable(path: Path, *, make_folder: bool) -> str:
    """Return why a file cannot be written, or "". With `make_folder`, hangup makes missing folders."""
    if path.is_dir():
        return f"{path} is a folder, not a file"
    if path.exists():
        return "" if os.access(path, os.W_OK) else f"{path} cannot be written by this user"
    folder = path.absolute().parent
    if not folder.exists() and not make_folder:
        return f"the folder {folder} does not exist"
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is not a folder"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"the folder {folder} cannot be written by this user"


def _store(name: str, newest: int) -> Iterator[str]:
    try:
        path = expanded(name)
    except OSError as error:
        yield str(error)
        return
    if problem := _not_writable(path, make_folder=True):
        yield problem
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
        elif version > newest:
            yield f"{path} was written by a newer version of hangup (schema {version}, here {newest})"


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
        yield from _refused("shared_state", lambda: check_for_sharing(settings))
        if _installed("redis"):
            yield from _refused("shared_state", lambda: Store(settings.shared_state, settings.shared_state_name, 1.0))


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _rest(settings: Settings) -> Iterator[Problem]:
    if any(is_discovered(backend.url) for backend in settings.backend):
        yield from _refused("dns_server", lambda: NameResolver(settings.dns_server))
    if settings.backend and all(backend.models for backend in settings.backend):
        patterns = [pattern for backend in settings.backend for pattern in backend.models]
        for index, alias in enumerate(settings.alias):
            if not any(fnmatchcase(alias.model, pattern) for pattern in patterns):
                yield ("alias", index, "model"), f"no backend has the model {alias.model}: each lists its models, without it"


def _backend(backend: BackendSettings) -> Iterator[tuple[str, str]]:
    for name in ("spawn", "restart_command"):
        command = getattr(backend, name)
        if not command:
            continue
        for word in sorted(set(_PLACEHOLDER.findall(command)) - _PLACEHOLDERS):
            yield name, f"{name}: {word} is not filled in; known are {', '.join(sorted(_PLACEHOLDERS))}"
        program = shlex.split(command)[0]
        if not _PLACEHOLDER.search(program) and shutil.which(program) is None:
            yield name, f"{name}: the program {program} was not found, or cannot be run"
    if backend.spawn_log and (problem := _not_writable(Path(backend.spawn_log), make_folder=False)):
        yield "spawn_log", f"spawn_log: {problem}"
    if backend.busy_from.startswith("nvml") and not _installed("pynvml"):
        yield "busy_from", f"busy_from: {backend.busy_from} needs an extra package\n  hint: pip install 'hangup[nvidia]'"


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
