"""Reloads the configuration when its file changes: in a container, Kubernetes replaces the file and nobody sends a signal."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from hangup.config.load import Configuration
from hangup.config.paths import expanded
from hangup.tasks import TASKS

_RETRY_S = 60.0  # after a reload that failed: its reason may pass, such as a key's file that comes later than its name

Stamps = dict[str, tuple[int, int, int]]  # by path; a missing file has none


class Reloadable(Protocol):
    configuration: Configuration  # in use; another object after a reload

    def reload(self) -> None: ...


@contextmanager
def reloading_on_change(server: Reloadable) -> Iterator[None]:
    """Reload whenever the file, or one that it names, changed, if `config_watch_s` asks for it, until the block ends."""
    period_s = server.configuration.settings.config_watch_s
    if not period_s or not _paths(server.configuration):
        yield
        return
    task = TASKS.keep("config watch", partial(_watch, server, period_s))
    try:
        yield
    finally:
        task.cancel()


def _paths(configuration: Configuration) -> list[str]:
    settings = configuration.settings
    of_backends = (path for backend in settings.backend for path in _files_of(backend))
    named = (configuration.path, settings.tls_cert, settings.tls_key, *_files_of(settings), *of_backends)
    return [str(path) for path in named if path]


def _files_of(section: object) -> list[str]:
    """Return the files that settings such as `api_key_file` name."""
    assert dataclasses.is_dataclass(section)
    return [getattr(section, field.name) for field in dataclasses.fields(section) if field.name.endswith("_file")]


async def _watch(server: Reloadable, period_s: float) -> None:
    loop = asyncio.get_running_loop()
    used = before = await asyncio.to_thread(_stamps, _paths(server.configuration))
    tried, tried_at = None, 0.0  # the configuration that the last reload should replace
    while True:
        await asyncio.sleep(period_s)
        now = await asyncio.to_thread(_stamps, _paths(server.configuration))
        # A file that a reload has added is new here: another reload follows, because it may have changed meanwhile.
        changed = any(used.get(path) != stamp for path, stamp in now.items())
        failed = tried is server.configuration and loop.time() - tried_at >= _RETRY_S
        if (changed and now == before) or failed:  # unchanged for a while: nobody is in the middle of writing it
            used = {**used, **now}
            tried, tried_at = server.configuration, loop.time()
            server.reload()
        before = now


def _stamps(paths: list[str]) -> Stamps:
    """Return what changes with the files. A link that is swapped leads to another inode."""
    found: Stamps = {}
    for path in paths:
        try:
            file = expanded(path).stat()
        except OSError:
            continue
        found[path] = file.st_mtime_ns, file.st_size, file.st_ino
    return found
