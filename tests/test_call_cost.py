"""Counts the function calls that one call costs, which are the same on every machine: a regression of a tenth fails here.

If a change needs more, raise the number with it and say why; if it needs less, lower it. `make bench ARGS=calls` prints them,
with CPU times.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bench import previous
from bench.call_cost import KINDS, InMemory, count, functions_called, request

from hangup.gateway.intake import Intake

# Python's own functions and those in C, from the request's first byte to the end of the call, by Python 3.11.
CALLS = {
    "passed through": 293,
    "whole": 399,
    "assembled": 562,
    "assembled apart": 646,
    "streamed": 661,
    "passed, ids": 390,
    "assembled, ids": 665,
    "whole, queued": 448,
}
WORSE, LESS = 1.1, 0.8
CALLS_PER_MESSAGE = 11  # to check its keys and to look for files in it


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_takes_no_more_function_calls_than_before(kind: str) -> None:
    check(kind, asyncio.run(count(kind)))


def check(kind: str, counted: float) -> None:
    assert counted <= CALLS[kind] * WORSE, f"{counted:.0f} function calls; {CALLS[kind]} are usual"
    assert counted >= CALLS[kind] * LESS, f"only {counted:.0f} function calls: measure again, and lower the number"


def test_a_long_prompt_takes_few_function_calls_for_each_of_its_messages() -> None:
    """Most of them are spent in one turn of the loop, when the body is complete."""

    async def called(messages: int) -> int:
        made = InMemory()
        message = {"role": "user", "content": "hello there, how are you today?"}
        sent = request("/v1/chat/completions", {"model": "m", "messages": [message] * messages, "stream": False})
        try:
            made.make([KINDS["assembled"]])
            found = functions_called(lambda: made.make([(sent, KINDS["assembled"][1])]))
            made.check()
            return found
        finally:
            await made.close()

    assert asyncio.run(called(4000)) - asyncio.run(called(2000)) <= 2000 * CALLS_PER_MESSAGE


def test_a_regression_of_more_than_a_tenth_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    opens = Intake.open

    def wasteful(*arguments: object) -> object:
        for _ in range(CALLS["passed through"] * 15 // 100):
            abs(1)
        return opens(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Intake, "open", wasteful)
    with pytest.raises(AssertionError, match="are usual"):
        check("passed through", asyncio.run(count("passed through")))


def test_figures_are_printed_beside_those_that_were_kept(tmp_path: Path) -> None:
    file = tmp_path / "previous.json"
    about = {"date": "2026-11-16 09:00", "machine": "a", "cpus": "2"}
    assert previous.beside(66.0, "calls", "whole", "us", file=file) == ""
    previous.keep({"calls": {"whole": {"us": 60.0}}, "streams": {"hangup": {"x_nginx": 1.2}}, **about}, file)
    previous.keep({"calls": {"whole": {"us": 120.0}}, "idle": {}, **about}, file)
    assert previous.beside(66.0, "calls", "whole", "us", file=file) == "(before: 120, -45%)"
    assert previous.beside(1.26, "streams", "hangup", "x_nginx", file=file) == "(before: 1.2, +5%)"
    assert previous.beside(1.0, "calls", "no such kind", "us", file=file) == ""
    assert set(CALLS) <= set(previous.kept()["calls"]), "bench/previous.json lacks a kind of call"
