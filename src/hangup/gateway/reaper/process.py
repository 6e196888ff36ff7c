"""Runs an engine as a child process (`spawn`): starts it, restarts it when it dies, and stops it when the gateway exits."""

from __future__ import annotations

import asyncio
import math
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import BinaryIO, Protocol

from hangup.config import BackendSettings
from hangup.gateway.reaper import restart
from hangup.tasks import TASKS

_BACKOFF_S = (1.0, 60.0)  # minimum and maximum; doubles after each death
_STEADY_S = 60.0  # a process that lived this long did not die of its start


class EngineOwner(Protocol):
    """Whoever runs an engine's process: this process, or the parent of several."""

    async def restart(self) -> str:
        """Stop the process and wait until it has started again. Return what went wrong, or ""."""

    async def close(self, within_s: float = math.inf) -> None:
        """Leave the engine alone; whoever owns its process stops it, and kills it if that takes longer."""


class Spawned:
    """One engine's process. `stop_s` returns how long it may take to stop; `log_event` is called at each start and death."""

    def __init__(self, settings: BackendSettings, stop_s: Callable[[], float], log_event: Callable[..., None]) -> None:
        self.process: Process | None = None
        self.deaths = 0  # consecutive, each soon after its start
        self._settings = settings
        self._stop_s = stop_s
        self._log_event = log_event
        self._words = restart.command(settings.spawn, settings)
        self._wanted = asyncio.Event()  # set when a restart is requested
        self._up = asyncio.Event()
        self._stop_within_s = math.inf
        self._task = TASKS.keep("spawn", self._run)

    async def restart(self) -> str:
        self._up.clear()
        self._wanted.set()
        await self._up.wait()
        return "" if self.process is not None else f"cannot start {self._words[0]}"

    async def close(self, within_s: float = math.inf) -> None:
        """Stop the process for good, and kill it if it has not stopped within this time or `stop_s`."""
        self._stop_within_s = within_s
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            lived_s = await self._life()
            if self._wanted.is_set():
                self.deaths = 0
                continue
            self.deaths = 1 if lived_s > _STEADY_S else self.deaths + 1
            least, most = _BACKOFF_S
            pause = min(least * 2 ** min(self.deaths - 1, 10), most)
            self._log_event("engine_exited", after_s=round(lived_s, 3), deaths=self.deaths, again_in_s=pause)
            await _either(self._wanted.wait(), asyncio.sleep(pause))

    def _open_log(self) -> BinaryIO | None:
        log = self._settings.spawn_log
        return Path(log).open("ab") if log else None

    async def _life(self) -> float:
        """Run the process from its start until it exits or is stopped. Return how long it lived, in seconds."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            output = self._open_log()
            self.process = process = await restart.start(self._words, self._settings.hidden_variables, output)
        except OSError as error:
            self.process = None
            self._up.set()
            self._log_event("engine_spawn_failed", error=str(error))
            return 0.0
        if output is not None:
            output.close()  # the process has its own copy
        self._log_event("engine_spawned", pid=process.pid)
        self._up.set()
        try:
            await _either(process.wait(), self._wanted.wait())
        finally:
            self.process = None
            # Shielded from cancellation of this task: the process must not outlive the gateway.
            await asyncio.shield(restart.end(process, min(self._stop_s(), self._stop_within_s)))
        return loop.time() - began


async def _either(*waits: Coroutine[object, object, object]) -> None:
    """Wait until one of them completes; cancel the others."""
    tasks = [TASKS.start("spawn", wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
