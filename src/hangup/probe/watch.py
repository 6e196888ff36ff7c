"""Watches the engine through its own figures: finds a page that has them, and asks it at a pace that does no harm."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import NoReturn

from hangup.core.reaper import EngineStatus
from hangup.probe.caller import Caller, connect_problem
from hangup.probe.endpoint import ProbeError
from hangup.probe.figures import FigureSource, TokenMeter, slots_of, sources, upkeep

_ANSWER_S = 5.0
_PAGES = ("/props", "/server_info")
_VERSIONS = ("/version", "/props", "/server_info", "/api/version", "/info")


@dataclass(frozen=True, slots=True)
class StatusLook:
    """A status, and when it was asked for and answered."""

    asked_at: float
    answered_at: float
    status: EngineStatus
    tokens: int | None


class EngineWatch:
    """The engine's figures, found by asking."""

    def __init__(self, caller: Caller, source: FigureSource, slots: int) -> None:
        self._caller = caller
        self.source = source
        self.slots = slots  # 0: unknown
        self._meter = TokenMeter()

    @property
    def where(self) -> str:
        return f"{self._caller.endpoint.url}{self.source.path.partition('?')[0]}"

    @property
    def is_shy(self) -> bool:
        """Whether questions keep the engine from noticing a silent client that leaves."""
        return self.source.silent_pace_s > self.source.pace_s

    async def look(self) -> StatusLook | None:
        """Ask once; return None if there is no readable answer."""
        asked_at = time.monotonic()
        try:
            status, page, _ = await self._caller.get(self.source.path, _ANSWER_S)
        except (OSError, TimeoutError):
            return None
        answered_at = time.monotonic()
        found = self.source.read(page) if status == 200 else None
        return None if found is None else StatusLook(asked_at, answered_at, found, self._meter.feed(found))

    async def until_idle(self, timeout_s: float) -> int:
        """Wait until the engine has no work; return how many calls it still has when the time is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = await self.look()
            work = found.status.work if found is not None else 0
            if (found is not None and not work) or time.monotonic() > deadline:
                return work
            await asyncio.sleep(self.source.silent_pace_s)

    async def left_over(self, pause_s: float) -> tuple[int, bool]:
        """Return how many calls the engine has, now and after a pause, and whether it computes nothing for them."""
        before = await self.look()
        await asyncio.sleep(pause_s + self.source.lag_s)
        after = await self.look()
        if before is None or after is None:
            return 0, False
        stands_still = before.tokens is not None and before.tokens == after.tokens
        return min(before.status.work, after.status.work), stands_still

    async def upkeep(self) -> tuple[float | None, float | None]:
        """Return the memory and the open descriptors of the engine's process, where it reports them."""
        try:
            _, page, _ = await self._caller.get("/metrics", _ANSWER_S)
        except (OSError, TimeoutError):
            return None, None
        return upkeep(page)


async def find_figures(caller: Caller, page: str) -> EngineWatch | None:
    """Ask for the pages that engines have; return None if none of them reports what runs."""
    for source in sources(page):
        watch = EngineWatch(caller, source, 0)
        found = await watch.look()
        if found is None:
            continue
        for path in ("", *_PAGES):
            watch.slots = watch.slots or slots_of(found.status, await _table(caller, path) if path else None)
        return watch
    return None


async def no_figures(caller: Caller, page: str) -> NoReturn:
    """Raise `ProbeError`: what was named as the place of the engine's figures has none."""
    try:
        status, _, _ = await caller.get(page or "/metrics", _ANSWER_S)
    except (OSError, TimeoutError) as error:
        (problem,) = connect_problem(caller.endpoint, error).problems
        raise ProbeError(f"--engine-metrics: {problem}") from None
    asked = page or ", ".join(source.path.partition("?")[0] for source in sources(""))
    said = f"HTTP {status}" if status != 200 else "a page of something else"
    raise ProbeError(f"--engine-metrics: {caller.endpoint.url} has no figures of a known engine at {asked} ({said})")


async def find_version(caller: Caller) -> str:
    """Return what the endpoint says of itself: its version and the name in its Server header."""
    server = ""
    for path in _VERSIONS:
        try:
            status, page, headers = await caller.get(path, _ANSWER_S)
        except (OSError, TimeoutError):
            continue
        server = server or headers.get("server", "")
        table = _parsed(page) if status == 200 else None
        if isinstance(table, dict):
            version = table.get("version") or table.get("build_info")
            if isinstance(version, str):
                return f"{server} {version}".strip()
    return server


async def _table(caller: Caller, path: str) -> object:
    try:
        status, page, _ = await caller.get(path, _ANSWER_S)
    except (OSError, TimeoutError):
        return None
    return _parsed(page) if status == 200 else None


def _parsed(page: bytes) -> object:
    try:
        return json.loads(page)
    except ValueError:
        return None
