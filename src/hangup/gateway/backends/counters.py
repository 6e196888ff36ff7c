"""Reads an engine's counters from its metrics page: tokens generated, calls running.

The adapters name the metrics. A page may repeat one for several models or ranks; the values are summed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from hangup.errors import EngineFault
from hangup.gateway.backends.adapters import ADAPTERS
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.fetch import fetch

_PATIENCE_S = 2.0  # how long to wait for an engine whose notice of disconnects would suffer from a query
_MOST = 2.0**53
_NUMBER = rb"([0-9.eE+-]+)"


def _lines_of(names: Iterable[str]) -> re.Pattern[bytes]:
    """Match the lines of these metrics. Those of all engines are known, whatever the backend was recognised as."""
    metrics = b"|".join(re.escape(name.encode()) for name in names if name)
    return re.compile(rb"^(?:%b)(?:\{[^}]*\})? %b" % (metrics, _NUMBER), re.M)


_TOKENS = _lines_of(adapter.tokens_metric for adapter in ADAPTERS.values())
_RUNNING = _lines_of(adapter.running_metric for adapter in ADAPTERS.values())


class ReportedCounters(NamedTuple):
    """An engine's counters; None where it does not report one."""

    tokens: int | None
    running: float | None


async def ask(backend: Backend) -> ReportedCounters | None:
    """Return the engine's counters, or None if it has no page that we can read."""
    if backend.adapter.disturbed:
        await _for_a_quiet_moment(backend)
    try:
        answer = await fetch(backend, "GET", backend.adapter.metrics_path, timeout_s=backend.limits.health_timeout_s)
    except EngineFault:
        return None
    found = read(answer.body) if answer.head.status == 200 else ReportedCounters(None, None)
    return None if found == (None, None) else found


async def _for_a_quiet_moment(backend: Backend) -> None:
    """Wait until no ended call holds a slot of the backend, or until patience runs out."""
    until = time.monotonic() + _PATIENCE_S
    while backend.load.held and time.monotonic() < until:  # noqa: ASYNC110 (nobody will tell)
        await asyncio.sleep(_PATIENCE_S / 20)


def read(page: bytes) -> ReportedCounters:
    tokens, running = _sum(page, _TOKENS), _sum(page, _RUNNING)
    return ReportedCounters(None if tokens is None else int(tokens), running)


def _sum(page: bytes, lines: re.Pattern[bytes]) -> float | None:
    values = [number for value in lines.findall(page) if (number := finite(value)) is not None]
    return sum(values) if values else None


def finite(text: bytes | str) -> float | None:
    """Return a usable number; None for text that is no number, is infinite, or exceeds any plausible count."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= _MOST else None


def gpu_use(page: bytes, gpus: frozenset[str] = frozenset()) -> float | None:
    """Return the mean utilisation (0 to 1) from a DCGM exporter's page, of the GPUs with these numbers, or of all."""
    rows = re.findall(rb'^DCGM_FI_DEV_GPU_UTIL\{[^}]*gpu="(\w+)"[^}]*\} ' + _NUMBER, page, re.M)
    reported = [finite(value) for gpu, value in rows if not gpus or gpu.decode() in gpus]
    values = [value / 100 for value in reported if value is not None]
    return sum(values) / len(values) if values else None
