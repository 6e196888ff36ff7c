"""Fixtures: a gateway and an engine per test module; tests that change either start their own."""

from __future__ import annotations

import faulthandler
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support import leftovers
from support.postgresql import STORES, new_store
from support.processes import Gateway, StandIn

# How fast examples are drawn depends on what else the machine does; it says nothing of the code.
settings.register_profile("shared machine", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("shared machine")
_EXIT_S = 120  # from the end of the last test to the end of the process


@pytest.fixture(scope="module")
def engine() -> Iterator[StandIn]:
    with StandIn(slots=8, prefill_s=0.02, token_s=0.005) as process:
        yield process


@pytest.fixture(scope="module")
def gateway(engine: StandIn) -> Iterator[Gateway]:
    with Gateway(engine.url) as process:
        yield process


@pytest.fixture(params=STORES)
def store_path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path of a new job store, once of each kind."""
    return new_store(request.param, tmp_path)


def pytest_unconfigure(config: pytest.Config) -> None:
    """A thread that a test has left would keep the process for ever, after its last test, where no other limit holds. Processes
    of xdist are ended by their parent."""
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(_EXIT_S, exit=True, file=2)


leftovers.watch()
_FAILED: list[str] = []  # tests whose leftovers are still to be collected


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    with leftovers.closed_at_the_end():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        _FAILED.append(item.nodeid)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if _FAILED:
        _FAILED.clear()
        leftovers.collect_quietly()
