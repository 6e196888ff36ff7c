"""Reads an engine's counters from its metrics page: tokens generated, calls running.

The metric names are the engines' own. A page may repeat one for several models or ranks; the values are summed.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import NamedTuple

from hangup.config import HealthLimits
from hangup.errors import EngineFault
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.fetch import fetch

PATH = "/metrics"
_PATIENCE_S = 2.0  # how long to wait for an engine whose notice of disconnects would suffer from a query
_TOKENS = (
    "vllm:generation_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
    "tgi_request_generated_tokens_sum",
    "lmdeploy:generation_tokens_total",
    "hangup_engine_tokens_total",
    "standin_tokens_total",
)
_RUNNING = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
    "tgi_batch_current_size",
    "lmdeploy:num_requests_running",
    "trtllm_num_requests_running",
    "hangup_engine_running",
    "standin_running",
)
_MOST = 2.0**53
_NUMBER = rb"([0-9.eE+-]+)"
_LINE = rb"^(%b)(?:\{[^}]*\})? " + _NUMBER


class ReportedCounters(NamedTuple):
    """An engine's counters; None where it does not report one."""

    tokens: int | None
    running: float | None


async def ask(backend: Backend, limits: HealthLimits) -> ReportedCounters | None:
    """Return the engine's counters, or None if it has no page that we can read."""
    if backend.adapter.disturbed:
        await _for_a_quiet_moment(backend)
    try:
        status_path = backend.adapter.status_path
        path = status_path if status_path.endswith("metrics") else PATH
        answer = await fetch(backend, "GET", path, timeout_s=limits.health_timeout_s)
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


def _sum(page: bytes, names: tuple[str, ...]) -> float | None:
    pattern = _LINE % b"|".join(re.escape(name.encode()) for name in names)
    values = [number for _, value in re.findall(pattern, page, re.M) if (number := finite(value)) is not None]
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
