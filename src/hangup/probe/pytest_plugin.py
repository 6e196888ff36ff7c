"""A pytest plugin: `pytest_plugins = ["hangup.probe.pytest_plugin"]`, then the fixture `hangup_probe`.

def test_stops(hangup_probe):
    hangup_probe.assert_stops("http://127.0.0.1:8000", within_s=1)
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hangup.probe.cases import choose
from hangup.probe.checks import assert_stops
from hangup.probe.report import ProbeReport
from hangup.probe.session import ProbeOptions, run_probe


class Prober:
    """What the fixture gives to a test."""

    def __init__(self) -> None:
        self.reports: list[ProbeReport] = []

    def probe(self, url: str, *, cases: str = "", **options: Any) -> ProbeReport:
        """Probe an endpoint; `options` are fields of `ProbeOptions`."""
        made = ProbeOptions(url, cases=tuple(choose(cases)), command="pytest", **options)
        report = asyncio.run(run_probe(made))
        self.reports.append(report)
        return report

    def assert_stops(
        self, url: str, within_s: float = 1.0, *, cases: str = "", untold: bool = False, **options: Any
    ) -> ProbeReport:
        """Probe an endpoint and fail unless it stops within `within_s`, in every phase."""
        __tracebackhide__ = True
        report = self.probe(url, cases=cases, within_s=within_s, **options)
        assert_stops(report, within_s, untold=untold)
        return report


@pytest.fixture
def hangup_probe() -> Prober:
    return Prober()
