"""A large page of metrics leaves the event loop to the calls while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from hangup.gateway.admin.metrics import render

PAIRS, BOUNDS = 64, 19
SAMPLES = 7 * PAIRS * (BOUNDS + 2)
SAMPLES_PER_TURN_MAX = 500


class Many(Collector):
    """As many histograms as the default limits allow, and some metrics of other kinds."""

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("depth", "Of the queue.", 3)
        yield CounterMetricFamily("none", "Without a sample.", labels=["model"])
        for number in range(7):
            family = HistogramMetricFamily(f"family_{number}_seconds", "Says # EOF\nitself.", labels=["model", "backend"])
            for pair in range(PAIRS):
                example = Exemplar({"trace_id": "f" * 32}, 0.5, 1.5)
                rows = [(str(at), float(at), example) for at in range(BOUNDS - 1)]
                family.add_metric([f'a "model"\n# EOF\n{pair}', "é"], [*rows, ("+Inf", 99.0)], 5.0)
            yield family
        calls = CounterMetricFamily("calls", "Ended.", labels=["cause"])
        calls.add_metric(["client_fin"], 2)
        yield calls


async def written(accept: str) -> tuple[tuple[bytes, str], int]:
    """Return the page, and how many turns others had meanwhile."""
    page = asyncio.create_task(render(Many(), accept))
    turns = 0
    while not page.done():
        turns += 1
        await asyncio.sleep(0)
    return page.result(), turns


@pytest.mark.parametrize("accept", ["", "text/plain;version=1.0.0", "application/openmetrics-text;version=1.0.0"])
def test_a_large_page_is_written_in_turns_and_is_the_same(accept: str) -> None:
    encode, kind = choose_encoder(accept)
    page, turns = asyncio.run(written(accept))
    assert page == (encode(Many()), kind)
    assert turns > SAMPLES / SAMPLES_PER_TURN_MAX, "calls get their turns"
