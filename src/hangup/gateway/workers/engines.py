"""The engines that hangup runs (`spawn`, the embedded engine) for several workers: the supervisor owns their processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable

from hangup.config import BackendSettings
from hangup.errors import HangupError
from hangup.gateway.backends.pool import Address
from hangup.gateway.reaper import Spawned
from hangup.tasks import Tasks

_SETTLE_S = 1.0  # after a reload, until all workers have said which calls they have in an engine that left the configuration
_OPEN_S = 60.0  # for the embedded engine to load its model
_OPEN_PAUSE_S = 0.05

CallsIn = Callable[[str], set[str]]  # the ids of the calls that workers have in a backend


class _Leaving:
    """An engine that is not in the configuration any more, and may still have calls."""

    def __init__(self, name: str, engine: Spawned) -> None:
        self.name = name
        self.engine = engine
        self._since = time.monotonic()
        self._calls: set[str] | None = None  # those that it still waits for

    def note_calls(self, calls: set[str], now: float) -> bool:
        """Note which calls its backend has; return whether its own have ended.

        Another engine may have the same name by now: only those calls count that were there when it left.
        """
        if now - self._since < _SETTLE_S:
            return False
        self._calls = calls if self._calls is None else self._calls & calls
        return not self._calls


class EngineProcesses:
    def __init__(self, calls_in: CallsIn, log_event: Callable[..., None]) -> None:
        self._calls_in = calls_in
        self._log_event = log_event
        self._stop_s = 0.0
        self._engines: dict[BackendSettings, Spawned] = {}
        self._leaving: list[_Leaving] = []
        self._ends = Tasks("engine")

    def use(self, backends: Iterable[BackendSettings], stop_s: float) -> None:
        """Run the engines of a configuration. Those that it does not name any more stop after their calls."""
        self._stop_s = stop_s
        wanted = [backend for backend in backends if backend.spawn]
        for left in self._engines.keys() - wanted:
            self._leaving.append(_Leaving(name_of(left), self._engines.pop(left)))
        for backend in wanted:
            if backend not in self._engines:
                self._engines[backend] = self._started(backend)

    def _started(self, backend: BackendSettings) -> Spawned:
        name = name_of(backend)

        def log_event(event: str, **fields: object) -> None:
            self._log_event(event, backend=name, **fields)

        return Spawned(backend, lambda: self._stop_s, log_event)

    async def wait_until_open(self, name: str, give_up: Callable[[], bool]) -> None:
        """Wait until an engine accepts connections; raise if it does not."""
        backend, engine = next((b, e) for b, e in self._engines.items() if name_of(b) == name)
        address = Address.of(backend)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPEN_S):
                while not engine.deaths:
                    if give_up():
                        return
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection(address.at, address.port)
                        writer.close()
                        return
                    await asyncio.sleep(_OPEN_PAUSE_S)
        raise HangupError(f"the {name} engine did not start; its output is above")

    async def restart(self, name: str) -> str:
        """Return what went wrong, or ""."""
        engine = next((engine for backend, engine in self._engines.items() if name_of(backend) == name), None)
        return "it has left the configuration" if engine is None else await engine.restart()

    def end_unused(self, now: float) -> None:
        """Stop those that have left the configuration and have no calls any more. Call this every so often."""
        for leaving in list(self._leaving):
            if leaving.note_calls(self._calls_in(leaving.name), now):
                self._leaving.remove(leaving)
                self._ends.start(leaving.engine.close())

    async def close(self, within_s: float) -> None:
        """Stop them all at the same time."""
        engines = [*self._engines.values(), *(leaving.engine for leaving in self._leaving)]
        self._engines.clear()
        self._leaving.clear()
        await asyncio.gather(*(engine.close(within_s) for engine in engines), return_exceptions=True)
        await self._ends.close()


def name_of(backend: BackendSettings) -> str:
    """Return the name that the workers' backend has."""
    address = Address.of(backend)
    return backend.name or address.authority + address.prefix
