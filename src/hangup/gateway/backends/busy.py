"""Measures how busy an engine is, from its own metrics, this machine's GPUs, or a DCGM exporter."""

from __future__ import annotations

import asyncio
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urldefrag

from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.counters import ReportedCounters, gpu_use

_PAGE_BYTES_MAX = 4 * 1024 * 1024


async def busy(backend: Backend, counters: ReportedCounters | None, timeout_s: float) -> float | None:
    """Return the utilisation, 0 to 1, or None if it is unknown. `busy_from` comes from the configuration, never from a
    caller."""
    source = backend.settings.busy_from
    if source == "engine":
        return None if counters is None or counters.running is None else float(counters.running > 0)
    kind, _, numbers = source.partition(":")
    if kind == "nvml":
        return await asyncio.to_thread(_nvml, _gpus(numbers))
    url, numbers = urldefrag(source)
    return await asyncio.to_thread(_dcgm, url, _gpus(numbers), timeout_s)


def _gpus(numbers: str) -> frozenset[str]:
    return frozenset(number.strip() for number in numbers.split(",") if number.strip())


def _dcgm(url: str, gpus: frozenset[str], timeout_s: float) -> float | None:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - checked with the configuration
            return gpu_use(answer.read(_PAGE_BYTES_MAX), gpus)
    except (OSError, ValueError, HTTPException):
        return None


def _nvml(gpus: frozenset[str]) -> float | None:
    try:
        import pynvml  # noqa: PLC0415 - an extra: hangup[nvidia]
    except ImportError:
        return None
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
        numbers = [int(gpu) for gpu in gpus if gpu.isdecimal()] or list(range(nvml.nvmlDeviceGetCount()))
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in numbers]
        used = [nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles]
    except nvml.NVMLError:
        return None
    return sum(used) / len(used) if used else None
