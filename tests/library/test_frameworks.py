"""Django, Quart and Sanic, each under one server. `make test-frameworks` runs every framework under every server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from flask import Flask, request

import hangup
from frameworks.pairs import check


@pytest.mark.parametrize(("framework", "server"), [("django", "uvicorn"), ("quart", "hypercorn"), ("sanic", "own")])
def test_a_hang_up_stops_the_engine(framework: str, server: str) -> None:
    check(framework, server)


async def answer() -> Any:
    raise AssertionError("never begun")


def test_requests_of_wsgi_are_refused_with_a_word_on_what_is_possible() -> None:
    """The source that was made for them is discarded, without a warning that nobody awaited it."""
    with Flask("served").test_request_context():
        with pytest.raises(TypeError, match="flask-and-other-wsgi-applications"):
            hangup.stream(request, answer())
        with pytest.raises(TypeError, match="flask-and-other-wsgi-applications"):
            asyncio.run(hangup.run(request, answer()))
    with pytest.raises(TypeError, match="unsupported request type dict"):
        hangup.stream({}, answer())
    with pytest.raises(TypeError, match="max_tokens must be a number"):
        hangup.stream(({"type": "http"}, answer), answer(), max_tokens="many")  # type: ignore[arg-type]
