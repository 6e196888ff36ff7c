"""The numbers of a request that a trace shows: a client may send any."""

from __future__ import annotations

from hangup.gateway.trace_attributes import request_attributes


def test_numbers_out_of_range_are_left_out_and_harm_nothing() -> None:
    huge = {"seed": 2**64 - 1, "max_tokens": 2**63, "temperature": 10**400, "top_p": float("inf"), "top_k": float("nan")}
    assert request_attributes(huge, 1) == {}


def test_the_largest_numbers_that_fit_are_shown() -> None:
    fitting = {"seed": -(2**63), "max_tokens": 2**63 - 1, "temperature": 1}
    assert request_attributes(fitting, 1) == {
        "gen_ai.request.seed": -(2**63),
        "gen_ai.request.max_tokens": 2**63 - 1,
        "gen_ai.request.temperature": 1.0,
    }
