"""Reads an engine's figures from its metrics page (Prometheus text).

The metric names are the engines' own, the same that the gateway's adapters know; a test compares them. A page may repeat one
for several models or ranks; the values are summed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TOKENS = (
    "vllm:generation_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
    "tgi_request_generated_tokens_sum",
    "lmdeploy:generation_tokens_total",
    "hangup_engine_tokens_total",
    "standin_tokens_total",
)
RUNNING = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
    "tgi_batch_current_size",
    "lmdeploy:num_requests_running",
    "trtllm_num_requests_running",
    "hangup_engine_running",
    "standin_running",
)
WAITING = (
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
    "tgi_queue_size",
    "lmdeploy:num_requests_waiting",
    "trtllm_num_requests_waiting",
    "hangup_engine_waiting",
    "standin_waiting",
)
_MOST = 2.0**53
_NUMBER = rb"([0-9.eE+-]+)"
_LINE = rb"^(%b)(?:\{[^}]*\})? " + _NUMBER


class PageCounters(NamedTuple):
    """An engine's counters; None where it does not report one."""

    tokens: int | None
    running: float | None
    waiting: float | None = None


def read(page: bytes) -> PageCounters:
    """Return the counters of the first engine known to this page."""
    tokens, running, waiting = (total(page, names) for names in (TOKENS, RUNNING, WAITING))
    return PageCounters(None if tokens is None else int(tokens), running, waiting)


def total(page: bytes, names: tuple[str, ...]) -> float | None:
    """Return the sum of the metrics with these names; None if the page has none of them."""
    pattern = _LINE % b"|".join(re.escape(name.encode()) for name in names)
    values = [number for _, value in re.findall(pattern, page, re.M) if (number := _finite(value)) is not None]
    return sum(values) if values else None


def _finite(text: bytes | str) -> float | None:
    """Return a usable number; None for text that is no number, is in_finite, or exceeds any plausible count."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= _MOST else None
