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
    "submitted": "Calls taken in.",
    "refused": "Calls answered 503, the waiting list being full.",
    "started": "Calls that got a slot.",
    "finished": "Calls that came to their end.",
    "failed": "Calls that a fault of the model ended.",
    "cancels": "Cancels received; a call sends one at most.",
    "cancelled_running": "Calls cancelled while they held a slot.",
    "cancelled_waiting": "Calls cancelled before they got a slot: nothing was computed for them.",
    "steps": "Turns of the engine.",
    "forwards": "Forwards of any model; the mailbox was drained before each.",
    "prompt_tokens": "Prompt tokens read.",
    "tokens": "Tokens of answers, for calls that were still there.",
    "tokens_dropped": "Tokens found for a call that was cancelled during the forward, or behind its end.",
    "drafted": "Tokens guessed by speculation.",
    "accepted": "Guesses that were right.",
    "busy_seconds": "Seconds spent in turns.",
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
