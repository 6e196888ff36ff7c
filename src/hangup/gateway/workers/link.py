"""The worker's end of the channel: sends what this worker reports, and does what the supervisor asks for.

If the supervisor dies, its socket closes: the worker drains and exits, because nobody could see it, reload it or stop it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Protocol

from starlette.types import ASGIApp

from hangup.config.load import Configuration
from hangup.gateway.gateway import Gateway
from hangup.gateway.jobs.provider_sharing import ProviderSharing
from hangup.gateway.members.peers import MemberPeers
from hangup.gateway.workers.asgi import ask_app
from hangup.gateway.workers.channel import Channel, Message, unpacked
from hangup.tasks import TASKS, Tasks


class LinkedServer(Protocol):
    """The worker, as far as the supervisor's messages concern it."""

    gateway: Gateway

    def listen_on(self, numbers: frozenset[int]) -> None:
        """Accept clients from these of the data port's sockets, and from no other."""

    def reload(self) -> None: ...

    def drain(self) -> None:
        """Serve no new calls, and end after the running ones."""

    def cut_drain_short(self) -> None: ...


class WorkerReports(Protocol):
    """Where calls and places are counted with those of others: `HubReports`, or on several hosts `StoreReports`."""

    peers: MemberPeers

    def start(self, gateway: Gateway) -> None: ...

    def report(self) -> None:
        """Tell the supervisor what it must know of this worker."""

    def report_for_ever(self) -> Coroutine[object, object, None]: ...

    def handle(self, kind: str, message: Message) -> bool:
        """Handle a message of the supervisor; return False if it is about something else."""

    async def close(self) -> None: ...


class SupervisorLink:
    def __init__(self, channel: Channel, configuration: Configuration) -> None:
        self.channel = channel
        self.configuration = configuration  # the latest that the supervisor sent
        self.admin_app: ASGIApp | None = None
        self._answers = Tasks("admin answer")
        self._server: LinkedServer | None = None
        self._reports: WorkerReports | None = None
        self._provider_sharing: ProviderSharing | None = None

    def start(self, server: LinkedServer, reports: WorkerReports) -> None:
        """Begin to report, and to do what the supervisor asks for. Ready: this worker can serve calls."""
        self._server, self._reports = server, reports
        reports.start(server.gateway)
        if server.gateway.jobs.provider is not None:
            self._provider_sharing = ProviderSharing(
                server.gateway.jobs.provider, lambda kind, fields: self.channel.send(kind, **fields)
            )
            server.gateway.jobs.provider.sharing = self._provider_sharing
        self._tasks = [TASKS.keep("supervisor", self._listen), TASKS.keep("report", reports.report_for_ever)]

    def ready(self) -> None:
        assert self._reports is not None
        self._reports.report()
        self.channel.send("ready")

    async def close(self) -> None:
        if self._reports is not None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._reports.close()
        await self._answers.close()
        await self.channel.flush()

    async def _listen(self) -> None:
        while (message := await self.channel.receive()) is not None:
            self._handle(message)
        assert self._server is not None
        self._server.gateway.log.event("supervisor_gone")
        self._server.drain()

    def _handle(self, message: Message) -> None:
        assert self._server is not None and self._reports is not None
        kind = message["kind"]
        if self._reports.handle(kind, message):
            return
        if self._provider_sharing is not None and self._provider_sharing.handle(kind, message):
            return
        if kind == "ask":
            self._answers.start(self._answer(message["number"], message["method"], message["target"]))
        elif kind == "listen":
            self._server.listen_on(frozenset(message["sockets"]))
        elif kind == "configuration":
            self.configuration = unpacked(message["packed"])
            self._server.reload()
        elif kind == "drain":
            self._server.drain()
        elif kind == "cut_drain_short":
            self._server.cut_drain_short()

    async def _answer(self, number: int, method: str, target: str) -> None:
        assert self.admin_app is not None
        try:
            status, body = await ask_app(self.admin_app, method, target)
        except Exception:  # the application has logged it; the supervisor must not wait for an answer
            status, body = 500, b'{"error":"internal gateway error; see the gateway log"}'
        self.channel.send("answer", number=number, status=status, body=body.decode("utf-8", "replace"))
