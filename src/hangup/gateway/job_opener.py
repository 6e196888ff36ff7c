"""Opens the job store at the start, and later if it could not be opened then."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hangup.config import Settings
from hangup.core.clocks import Backoff
from hangup.errors import HangupError
from hangup.gateway.gateway import Gateway
from hangup.gateway.jobs.api import JobApi
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.store.jobs import JobStore
from hangup.gateway.store.postgresql import without_password
from hangup.gateway.store.worker_thread import StoreDamaged, StoreFailed
from hangup.tasks import TASKS

_PAUSE_S, _PAUSE_MAX_S = 2.0, 60.0  # before another attempt


class JobOpener:
    def __init__(self, gateway: Gateway, password: Callable[[], str]) -> None:
        """`password` is asked for each new connection to a server."""
        self._gateway = gateway
        self._password = password
        self._later: asyncio.Task[None] | None = None  # opens the store if that failed at the start

    async def open(self, settings: Settings, port: int) -> None:
        """Give the gateway its jobs, at once or as soon as their store can be used."""
        path = jobs_path(settings, port)
        if path is None:
            return
        try:
            self._gateway.jobs.api = await self._open_store(path, settings)
        except HangupError as error:
            if settings.jobs != "auto" and not isinstance(error, StoreFailed):
                raise
            # Users without jobs need no place to store them, and a full disk or a lock must not keep live calls waiting.
            self._gateway.log.event("jobs_disabled", error=str(error))
            self._later = TASKS.keep("jobs", partial(self._open_later, path, settings))

    def give_up(self) -> None:
        """Open no store any more: it would start items, and the drain would wait for them."""
        if self._later is not None:
            self._later.cancel()

    async def close(self) -> None:
        self.give_up()
        if self._later is not None:
            await asyncio.gather(self._later, return_exceptions=True)

    async def _open_store(self, path: str, settings: Settings) -> JobApi:
        gateway = self._gateway
        store = await self._opened(path, settings.limits.wal_bytes_max)
        registry = JobRegistry(store, gateway.jobs_port, gateway.loop, settings.jobs_days)
        job_api = JobApi(registry, lambda: gateway.policy.router)
        try:
            await registry.open()
        except BaseException as failure:  # cancellation included: nobody else would close the store's thread and file
            await asyncio.to_thread(store.close)
            if not isinstance(failure, StoreFailed):
                raise
            kind = HangupError if isinstance(failure, StoreDamaged) else StoreFailed
            raise kind(f"cannot use {without_password(path)}: {failure}") from None
        return job_api

    async def _opened(self, path: str, wal_bytes_max: int) -> JobStore:
        """Return the opened store. If cancelled meanwhile, close the store once it is open, because it has no other owner."""
        opened = asyncio.to_thread(JobStore, path, wal_bytes_max, self._password)
        opening = TASKS.start("job store", opened, handled=(HangupError,))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            with contextlib.suppress(HangupError):
                await asyncio.to_thread((await opening).close)
            raise

    async def _open_later(self, path: str, settings: Settings) -> None:
        pauses = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        while self._gateway.jobs.api is None:
            await asyncio.sleep(pauses.failed(self._gateway.loop.time()))
            with contextlib.suppress(HangupError):
                self._gateway.jobs.api = await self._open_store(path, settings)
                self._gateway.log.event("job_store_opened")


def jobs_path(settings: Settings, port: int) -> str | None:
    """Return the path of the job store, perhaps with a ~; "" for a store in memory, None for no store."""
    if settings.jobs in ("none", "provider"):
        return None
    if settings.jobs != "auto":
        return settings.jobs
    if settings.port == 0:  # a random port, by which the next process could not find the store
        return ""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return str(Path(state) / "hangup" / f"jobs-{port}.sqlite")
