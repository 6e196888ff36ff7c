"""Fixtures: a gateway and an engine per test module; tests that change either start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from support.processes import Gateway, StandIn

# How fast examples are drawn depends on what else the machine does; it says nothing of the code.
settings.register_profile("shared machine", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("shared machine")


@pytest.fixture(scope="module")
def engine() -> Iterator[StandIn]:
    with StandIn(slots=8, prefill_s=0.02, token_s=0.005) as process:
        yield process


@pytest.fixture(scope="module")
def gateway(engine: StandIn) -> Iterator[Gateway]:
    with Gateway(engine.url) as process:
        yield process
