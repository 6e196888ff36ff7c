"""Runs functions over many files: in the processes of a pool, one for each core, or here if that is not worth it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from types import TracebackType

PARALLEL_FROM_FILES = 64  # with fewer files, the work is done before a second process has started
MORE_FROM_FILES = 16  # once there are processes, below which sending them the work is not worth it
FILES_PER_TASK = 32

T = TypeVar("T")


class Workers:
    """The pool starts with the first work that is worth it, and ends with the block."""

    def __init__(self) -> None:
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @property
    def are_several(self) -> bool:
        return self._cores > 1

    def are_worth(self, files: int) -> bool:
        """Return whether this many files are read faster in several processes."""
        return self.are_several and files >= (PARALLEL_FROM_FILES if self._pool is None else MORE_FROM_FILES)

    def map(self, function: Callable[..., list[tuple[str, T]]], paths: list[str], *same: Any) -> Iterator[tuple[str, T]]:
        """Yield what a function returns for the paths; it is given `same` with each part of them."""
        if not self.are_worth(len(paths)):
            yield from function(paths, *same)
            return
        if self._pool is None:
            self._pool = _start(self._cores)
        size = min(FILES_PER_TASK, -(-len(paths) // self._cores))
        parts = [paths[i : i + size] for i in range(0, len(paths), size)]
        for rows in self._pool.map(function, parts, *([value] * len(parts) for value in same)):
            yield from rows


def _start(cores: int) -> ProcessPoolExecutor:
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - a fifth of the time that the linter takes to start
    from multiprocessing import get_context  # noqa: PLC0415

    return ProcessPoolExecutor(cores, mp_context=get_context("spawn"))
