"""What an engine says of itself on its page of metrics: tokens computed, calls running.

The names are the engines' own; a page may have the same one for several models or ranks, and then they are added up.
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
_PATIENCE_S = 2.0  # with an engine that questions disturb while it has to notice a departure
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
    """What an engine tells; None where it does not."""

    tokens: int | None
    running: float | None


async def ask(backend: Backend, limits: HealthLimits) -> ReportedCounters | None:
    """The engine's counters, or None when it has no page that we can read."""
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
    """Until no call is waited for to be let go of, or for as long as there is patience."""
    until = time.monotonic() + _PATIENCE_S
    while backend.seat.held and time.monotonic() < until:  # noqa: ASYNC110 (nobody will tell)
        await asyncio.sleep(_PATIENCE_S / 20)


def read(page: bytes) -> ReportedCounters:
    tokens, running = _sum(page, _TOKENS), _sum(page, _RUNNING)
    return ReportedCounters(None if tokens is None else int(tokens), running)


def _sum(page: bytes, names: tuple[str, ...]) -> float | None:
    pattern = _LINE % b"|".join(re.escape(name.encode()) for name in names)
    values = [number for _, value in re.findall(pattern, page, re.M) if (number := finite(value)) is not None]
    return sum(values) if values else None


def finite(text: bytes | str) -> float | None:
    """A number that can be counted with; None for what is none, infinite, or more than any engine has counted."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= _MOST else None


def gpu_use(page: bytes, gpus: frozenset[str] = frozenset()) -> float | None:
    """Mean utilisation (0 to 1) on the page of a DCGM exporter, of the GPUs with these numbers, or of all."""
    rows = re.findall(rb'^DCGM_FI_DEV_GPU_UTIL\{[^}]*gpu="(\w+)"[^}]*\} ' + _NUMBER, page, re.M)
    told = [finite(value) for gpu, value in rows if not gpus or gpu.decode() in gpus]
    values = [value / 100 for value in told if value is not None]
    return sum(values) / len(values) if values else None
