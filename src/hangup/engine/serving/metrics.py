"""The engine's counters for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

GAUGES = {
    "running": "Calls that hold a slot.",
    "waiting": "Calls that wait for a slot.",
    "blocks_free": "Blocks of the KV cache that no call holds.",
}
COUNTERS = {
    "submitted": "Calls accepted.",
    "refused": "Calls refused with a 503: the queue was full.",
    "started": "Calls that got a slot.",
    "finished": "Calls that finished.",
    "failed": "Calls that failed because the model failed.",
    "cancels": "Cancellations received, at most one per call.",
    "cancelled_running": "Calls cancelled while they held a slot.",
    "cancelled_waiting": "Calls cancelled before they got a slot: nothing was computed for them.",
    "steps": "Scheduler steps.",
    "forwards": "Forward passes of any model; cancellations are read before each.",
    "prompt_tokens": "Prompt tokens read.",
    "tokens": "Tokens generated for calls that were not cancelled.",
    "tokens_dropped": "Tokens discarded: the call was cancelled during the forward pass, or had ended.",
    "drafted": "Tokens drafted by speculative decoding.",
    "accepted": "Drafted tokens that were accepted.",
    "busy_seconds": "Seconds spent in scheduler steps.",
}


class _EngineCollector(Collector):
    def __init__(self, counters: Mapping[str, float]) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        for name, doc in GAUGES.items():
            yield GaugeMetricFamily(f"hangup_engine_{name}", doc, self._counters[name])
        for name, doc in COUNTERS.items():
            yield CounterMetricFamily(f"hangup_engine_{name}", doc, self._counters[name])


def render(counters: Mapping[str, float]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_EngineCollector(counters))
    return generate_latest(registry)
