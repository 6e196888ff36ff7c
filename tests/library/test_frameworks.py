"""Django, Quart and Sanic, each under one server. `make test-frameworks` runs every framework under every server."""

from __future__ import annotations

import pytest

from frameworks.pairs import check


@pytest.mark.parametrize(("framework", "server"), [("django", "uvicorn"), ("quart", "hypercorn"), ("sanic", "own")])
def test_a_hang_up_stops_the_engine(framework: str, server: str) -> None:
    check(framework, server)
