"""The story of an engine that gets stuck when a call is aborted, as engines with speculative decoding did.

The engine is the stand-in: fixed speed, faults on demand. Some seconds after the start it gets the fault: at the next hang-up
it stops computing, answers status requests, and stays so until it is restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from functools import partial

from hangup.cli.demo_parts.phases import ANSWER_TOKENS, LOAD, EngineSample, Side, Story
from hangup.cli.demo_parts.processes import (
    START_S_MAX,
    fake_engine,
    fake_engine_stats,
    gateway_with_engine,
    plain_proxy,
    tell_fake_engine,
)

_TOKEN_S, _PREFILL_S = 0.004, 0.05
_FAULT_AT = 0.2  # of a side's time
_STILL_S = 1.0  # without a token while calls run: it is stuck


def wedged(slots: int, admin_port: int) -> Story:
    async def rate() -> float:
        return LOAD * slots / (_PREFILL_S + ANSWER_TOKENS * _TOKEN_S)

    flags = ("--slots", str(slots), "--queue", "256", "--token-s", str(_TOKEN_S), "--prefill-s", str(_PREFILL_S))
    return Story(rate, (("without hangup", partial(_without, flags)), ("with hangup", partial(_with, flags, admin_port))))


@contextlib.asynccontextmanager
async def _without(flags: tuple[str, ...]) -> AsyncIterator[Side]:
    async with fake_engine(flags) as engine_port, plain_proxy(engine_port, "closes") as port:
        yield _side(port, engine_port)


@contextlib.asynccontextmanager
async def _with(flags: tuple[str, ...], admin_port: int) -> AsyncIterator[Side]:
    engine_port = _free_port()
    async with gateway_with_engine(engine_port, flags, admin_port) as port:
        async with asyncio.timeout(START_S_MAX):
            while not await fake_engine_stats(engine_port):  # noqa: ASYNC110 - the gateway starts it, and nothing tells when
                await asyncio.sleep(0.05)
        yield _side(port, engine_port)


def _side(port: int, engine_port: int) -> Side:
    async def start(seconds: float) -> None:
        await asyncio.sleep(seconds * _FAULT_AT)
        await tell_fake_engine(engine_port, {"wedge": True})

    return Side(port, _StuckWatch(engine_port).sample, start)


class _StuckWatch:
    """Measures for how long the engine has calls and computes nothing, or does not answer at all."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tokens = -1
        self._moved_at = time.monotonic()
        self._stuck_s = 0.0
        self._restarts = 0

    async def sample(self) -> EngineSample:
        stats, now = await fake_engine_stats(self._port), time.monotonic()
        tokens = stats.get("tokens", self._tokens)
        self._restarts += tokens < self._tokens  # a new process counts from 0
        if tokens != self._tokens or (stats and not stats["running"]):
            if now - self._moved_at >= _STILL_S:
                self._stuck_s += now - self._moved_at
            self._tokens, self._moved_at = tokens, now
        still = now - self._moved_at
        stuck_s = self._stuck_s + (still if still >= _STILL_S else 0.0)
        return EngineSample(tokens, 0.0, stats.get("running", 0) + stats.get("waiting", 0), stuck_s, self._restarts)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
