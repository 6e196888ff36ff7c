"""Reloads the configuration when its file changes: in a container, Kubernetes replaces the file and nobody sends a signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

from hangup.config.load import Configuration
from hangup.tasks import TASKS

Stamp = tuple[tuple[int, int, int], ...]


class _Section(Protocol):
    """The settings, or those of a backend."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


@contextmanager
def reloading_on_change(configuration: Configuration, reload: Callable[[], None]) -> Iterator[None]:
    """Call `reload` whenever the file, or one that it names, changed, if `config_watch_s` asks for it, until the block ends."""
    settings = configuration.settings
    of_backends = (path for backend in settings.backend for path in _files_of(backend))
    named = (configuration.path, settings.tls_cert, settings.tls_key, *_files_of(settings), *of_backends)
    paths = [str(path) for path in named if path]
    if not settings.config_watch_s or not paths:
        yield
        return
    task = TASKS.keep("config watch", partial(_watch, paths, settings.config_watch_s, reload))
    try:
        yield
    finally:
        task.cancel()


def _files_of(section: _Section) -> list[str]:
    """Return the files that settings such as `api_key_file` name."""
    return [getattr(section, name) for name in section.__dataclass_fields__ if name.endswith("_file")]


async def _watch(paths: list[str], period_s: float, reload: Callable[[], None]) -> None:
    used = before = await asyncio.to_thread(_stamp, paths)
    while True:
        await asyncio.sleep(period_s)
        now = await asyncio.to_thread(_stamp, paths)
        if now not in (used, None) and now == before:  # unchanged for a while: nobody is in the middle of writing it
            used = now
            reload()
        before = now


def _stamp(paths: list[str]) -> Stamp | None:
    """Return what changes with the files, or None while one is missing. A link that is swapped leads to another inode."""
    try:
        found = [Path(path).stat() for path in paths]
    except OSError:
        return None
    return tuple((file.st_mtime_ns, file.st_size, file.st_ino) for file in found)
