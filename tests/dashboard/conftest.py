from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.processes import Gateway, StandIn, gateway_and_engine


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    from dashboard.browsing import CHROMIUM

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Gateway, StandIn]]:
    with gateway_and_engine({"counters_interval_s": 0.2}, slots=8, token_s=0.01) as made:
        yield made
