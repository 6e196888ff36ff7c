"""The story of an engine with speculative decoding that gets stuck when a client hangs up, as llama-server was reported to.

The engine is the stand-in, as llama-server with a drafter: fixed speed, faults on demand. Some seconds after the start it gets
the fault: at the next hang-up during an answer it never leaves its draft loop. It drafts on (a GPU would be busy), computes no
token for anybody, and reads neither cancels nor requests for its status, while it keeps saying that it is healthy.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

from hangup.cli.demo_parts.phases import ANSWER_TOKENS, LOAD, EngineSample, Side, Story
from hangup.cli.demo_parts.picture import Stuck
from hangup.cli.demo_parts.processes import (
    START_S_MAX,
    fake_engine,
    fake_engine_stats,
    fake_engine_was_asked,
    gateway_with_engine,
    plain_proxy,
    tell_fake_engine,
)

_DRAFT = 4  # tokens in a step, of which half are accepted
_TOKENS_IN_STEP = 1 + _DRAFT // 2
_STEP_S, _PREFILL_S = 0.012, 0.05
_FAULT_AT = 0.2  # of a side's time
_STILL_S = 1.0  # without a token while calls run: it is stuck


def wedged(slots: int, admin_port: int) -> Story:
    async def rate() -> float:
        return LOAD * slots / (_PREFILL_S + ANSWER_TOKENS * _STEP_S / _TOKENS_IN_STEP)

    speed = ("--token-s", str(_STEP_S), "--prefill-s", str(_PREFILL_S), "--draft", str(_DRAFT))
    flags = ("--like", "llamacpp", "--slots", str(slots), "--queue", "256", *speed)
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
            # The gateway starts it, and knows what it is once it has asked for its slots.
            while not await fake_engine_was_asked(engine_port, "/slots"):  # noqa: ASYNC110 - nothing tells when
                await asyncio.sleep(0.05)
        yield _side(port, engine_port)


def _side(port: int, engine_port: int) -> Side:
    async def start(seconds: float) -> None:
        await asyncio.sleep(seconds * _FAULT_AT)
        await tell_fake_engine(engine_port, {"wedge": True})

    return Side(port, _StuckWatch(engine_port).sample, start)


class _StuckWatch:
    """Measures for how long the engine has calls and computes nothing, or does not answer, and what it does meanwhile."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._before = Stuck()  # until the engine last moved
        self._moved_at = time.monotonic()
        self._tokens, self._pid = -1, 0
        self._drafted = self._drafted_then = 0  # by now, and when it last moved
        self._unread = 0

    async def sample(self) -> EngineSample:
        stats, now = await fake_engine_stats(self._port), time.monotonic()
        if stats and (stats["pid"] != self._pid or stats["tokens"] != self._tokens or not stats["running"]):
            self._moved(stats, now)
        elif stats:
            self._drafted, self._unread = stats["drafted"], stats["cancels_unread"]
        in_engine = stats.get("running", 0) + stats.get("waiting", 0)
        return EngineSample(self._tokens, 0.0, in_engine, self._until(now))

    def _moved(self, stats: dict[str, Any], now: float) -> None:
        self._before = self._until(now)
        if self._pid not in (0, stats["pid"]):
            self._before = replace(self._before, restarts=self._before.restarts + 1)
        self._moved_at, self._tokens, self._pid = now, stats["tokens"], stats["pid"]
        self._drafted = self._drafted_then = stats["drafted"]
        self._unread = 0

    def _until(self, now: float) -> Stuck:
        still_s, before = now - self._moved_at, self._before
        if still_s < _STILL_S:
            return before
        drafted = before.drafted + self._drafted - self._drafted_then
        return Stuck(before.seconds + still_s, before.restarts, drafted, before.cancels + self._unread)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
