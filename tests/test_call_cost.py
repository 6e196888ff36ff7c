"""What a call costs in function calls, which are the same on every machine: a regression of a tenth is noticed here.

If a change needs more, raise the number with it and say why; if it needs less, lower it. `python -m bench.call_cost` prints
them, with CPU times.
"""

from __future__ import annotations

import asyncio

import pytest
from bench.call_cost import count

# Python's own functions and those in C, from the request's first byte to the end of the call, by Python 3.11.
CALLS = {
    "passed through": 321,
    "whole": 459,
    "assembled": 757,
    "streamed": 806,
    "passed, ids": 409,
    "assembled, ids": 850,
}
WORSE = 1.1


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_takes_no_more_function_calls_than_before(kind: str) -> None:
    counted = asyncio.run(count(kind))
    assert counted <= CALLS[kind] * WORSE, f"{counted:.0f} function calls; {CALLS[kind]} are usual"
    assert counted >= CALLS[kind] * 0.8, f"only {counted:.0f} function calls: measure again, and lower the number"
