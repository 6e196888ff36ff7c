"""The worker's end of the channel: sends what this worker reports, and does what the supervisor asks for.

If the supervisor dies, its socket closes: the worker drains and exits, because nobody could see it, reload it or stop it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.types import ASGIApp

from hangup.config.load import Configuration
from hangup.core.members import LearnedFigures, LeftCall, TokenLevel, WholeFigures
from hangup.core.members.pace import HURRY_S, REPORT_S, SOON_AGAIN_S, SOON_S
from hangup.gateway.gateway import Gateway
from hangup.gateway.jobs.provider_sharing import ProviderSharing
from hangup.gateway.members.member import Member
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


class SupervisorLink:
    def __init__(self, channel: Channel, configuration: Configuration) -> None:
        self.channel = channel
        self.configuration = configuration  # the latest that the supervisor sent
        self.admin_app: ASGIApp | None = None
        self._answers = Tasks("admin answer")
        self._soon: asyncio.TimerHandle | None = None
        self._soon_from = 0.0  # not before this time
        self._tenants_sent: list[tuple[object, ...]] = []
        self._learned_sent: list[LearnedFigures] = []
        self._server: LinkedServer | None = None
        self._provider_sharing: ProviderSharing | None = None
        self.peers = MemberPeers(lambda kind, fields: channel.send(kind, **fields))

    def start(self, server: LinkedServer) -> None:
        """Begin to report, and to do what the supervisor asks for. Ready: this worker can serve calls."""
        self._server = server
        self._member = Member(server.gateway, self._report_soon)
        self.peers.start(server.gateway)
        if server.gateway.jobs.provider is not None:
            self._provider_sharing = ProviderSharing(
                server.gateway.jobs.provider, lambda kind, fields: self.channel.send(kind, **fields)
            )
            server.gateway.jobs.provider.sharing = self._provider_sharing
        self._tasks = [TASKS.keep("supervisor", self._listen), TASKS.keep("report", self._report_for_ever)]

    def ready(self) -> None:
        self._report()
        self.channel.send("ready")

    async def close(self) -> None:
        if self._server is not None:
            self._report_places()  # what calls that were cut short still use in the engines
            self._member.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._soon is not None:
            self._soon.cancel()
        await self._answers.close()
        await self.peers.close()
        await self.channel.flush()

    # Reports

    async def _report_for_ever(self) -> None:
        while True:
            await asyncio.sleep(HURRY_S if self._member.in_hurry() else REPORT_S)
            self._report()

    def _report_soon(self) -> None:
        """Report places soon; calls are reported at the usual interval."""
        if self._soon is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + SOON_S, self._soon_from)
            self._soon_from = at + SOON_AGAIN_S
            self._soon = loop.call_at(at, self._report_places)

    def _report(self) -> None:
        """Report everything."""
        report = self._member.calls()
        new = [call.row() for call in report.new]
        calls = {"new": new, "gone": report.gone, "live": report.live, "output": report.output}
        self.channel.send("calls", **calls, in_engines=report.in_engines)
        tenants = [tuple(row) for row in self._member.tenants()]
        if tenants != self._tenants_sent:
            self._tenants_sent = tenants
            self.channel.send("tenants", rows=tenants)
        charged = self._member.tokens_charged()
        if charged:
            self.channel.send("tokens_charged", rows=[tuple(row) for row in charged])
        self._report_places()

    def _report_places(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        learned = self._member.learned()
        if learned != self._learned_sent or any(row.in_flight for row in learned):  # how long calls run counts as well
            self._learned_sent = learned
            self.channel.send("learned", rows=[tuple(row) for row in learned])
        if seen := self._member.observations():
            self.channel.send("observations", seen=seen)
        places = [place.row() for place in self._member.places()]
        self.channel.send("places", places=places, asks=self._member.asks())

    # What the supervisor asks for

    async def _listen(self) -> None:
        while (message := await self.channel.receive()) is not None:
            self._handle(message)
        assert self._server is not None
        self._server.gateway.log.event("supervisor_gone")
        self._server.drain()

    def _handle(self, message: Message) -> None:
        assert self._server is not None
        kind = message["kind"]
        if self.peers.handle(kind, message):
            return
        if self._provider_sharing is not None and self._provider_sharing.handle(kind, message):
            return
        if kind == "grants":
            self._member.take_grants(message["grants"])
            self._report_places()  # others may wait for what is returned
        elif kind == "ask":
            self._answers.start(self._answer(message["number"], message["method"], message["target"]))
        elif kind == "listen":
            self._server.listen_on(frozenset(message["sockets"]))
        elif kind == "stop_calls":
            for worker, rows in message["calls"].items():
                self._member.stop_calls(worker, [LeftCall(*row) for row in rows], "worker")
            self.channel.send("stopping", term=message["term"], workers=list(message["calls"]))
        elif kind == "configuration":
            self.configuration = unpacked(message["packed"])
            self._server.reload()
        elif kind == "considered":
            self._member.considered(message["more_may_come"])
        elif kind == "token_levels":
            self._member.take_token_levels([TokenLevel(*row) for row in message["levels"]], message["members"])
        elif kind == "served":
            self._member.note_served(message["by_others"])
        elif kind == "whole":
            self._member.note_whole([WholeFigures(*row) for row in message["rows"]])
        elif kind == "output":
            self._member.note_output(message["at"])
        elif kind == "others":
            self._member.note_others(message["calls"])
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
