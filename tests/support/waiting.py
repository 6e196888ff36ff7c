"""Waits for events: no test sleeps and hopes, and no test depends on how busy the machine is.

An event that must happen gets `PATIENCE_S`, far more than it ever takes: only what hangs takes longer. Whether something
happens soon enough is a question for the benchmarks; tests check what has happened, and how often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


PATIENCE_S = 60.0


def wait_until(condition: Callable[[], T], timeout_s: float = PATIENCE_S, what: str = "") -> T:
    """Return the condition's first true value; fail if there is none in time. Less time than `PATIENCE_S` proves nothing."""
    timeout_s = max(timeout_s, PATIENCE_S)
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what or condition} (last value: {value!r})")
        time.sleep(0.005)


async def soon(condition: Callable[[], object], what: str = "") -> None:
    """Do the same in an event loop, which keeps running meanwhile."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - the condition can be anything
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE_S:g} s: {what or condition}") from None
