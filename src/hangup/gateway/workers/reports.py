"""What a worker and the supervisor's hub tell each other of calls, places, quotas and engines: the books of one host.

Workers that share their state with other hosts by a store do not use this: each of them is a gateway of its own there.
"""

from __future__ import annotations

import asyncio

from hangup.core.members import LearnedFigures, LeftCall, TokenLevel, WholeFigures
from hangup.core.members.pace import HURRY_S, REPORT_S, SOON_AGAIN_S, SOON_S
from hangup.gateway.gateway import Gateway
from hangup.gateway.members.member import Member
from hangup.gateway.members.peers import MemberPeers
from hangup.gateway.workers.channel import Channel, Message


class HubReports:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._soon: asyncio.TimerHandle | None = None
        self._soon_from = 0.0  # not before this time
        self._tenants_sent: list[tuple[object, ...]] = []
        self._learned_sent: list[LearnedFigures] = []
        self._member: Member | None = None
        self.peers = MemberPeers(lambda kind, fields: channel.send(kind, **fields))

    def start(self, gateway: Gateway) -> None:
        self._member = Member(gateway, self._report_soon)
        self.peers.start(gateway)

    async def close(self) -> None:
        if self._member is not None:
            self._report_places(self._member)  # what calls that were cut short still use in the engines
            self._member.close()
        if self._soon is not None:
            self._soon.cancel()
        await self.peers.close()

    # What this worker reports

    async def report_for_ever(self) -> None:
        assert self._member is not None
        while True:
            await asyncio.sleep(HURRY_S if self._member.in_hurry() else REPORT_S)
            self.report()

    def report(self) -> None:
        """Report everything."""
        assert self._member is not None
        report = self._member.calls()
        new = [call.row() for call in report.new]
        calls = {"new": new, "gone": report.gone, "live": report.live, "output": report.output}
        self._channel.send("calls", **calls, in_engines=report.in_engines)
        tenants = [tuple(row) for row in self._member.tenants()]
        if tenants != self._tenants_sent:
            self._tenants_sent = tenants
            self._channel.send("tenants", rows=tenants)
        charged = self._member.tokens_charged()
        if charged:
            self._channel.send("tokens_charged", rows=[tuple(row) for row in charged])
        self._report_places(self._member)

    def _report_soon(self) -> None:
        """Report places soon; calls are reported at the usual interval."""
        if self._soon is None and self._member is not None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + SOON_S, self._soon_from)
            self._soon_from = at + SOON_AGAIN_S
            self._soon = loop.call_at(at, self._report_places, self._member)

    def _report_places(self, member: Member) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        learned = member.learned()
        if learned != self._learned_sent or any(row.in_flight for row in learned):  # how long calls run counts as well
            self._learned_sent = learned
            self._channel.send("learned", rows=[tuple(row) for row in learned])
        if seen := member.observations():
            self._channel.send("observations", seen=seen)
        places = [place.row() for place in member.places()]
        self._channel.send("places", places=places, asks=member.asks())

    # What the hub says

    def handle(self, kind: str, message: Message) -> bool:
        """Handle a message of the hub; return False if it is about something else."""
        member = self._member
        assert member is not None
        if self.peers.handle(kind, message):
            return True
        if kind == "grants":
            member.take_grants(message["grants"])
            self._report_places(member)  # others may wait for what is returned
        elif kind == "stop_calls":
            for worker, rows in message["calls"].items():
                member.stop_calls(worker, [LeftCall(*row) for row in rows], "worker")
            self._channel.send("stopping", term=message["term"], workers=list(message["calls"]))
        elif kind == "considered":
            member.considered(message["more_may_come"])
        elif kind == "token_levels":
            member.take_token_levels([TokenLevel(*row) for row in message["levels"]], message["members"])
        elif kind == "served":
            member.note_served(message["by_others"])
        elif kind == "whole":
            member.note_whole([WholeFigures(*row) for row in message["rows"]])
        elif kind == "output":
            member.note_output(message["at"])
        elif kind == "others":
            member.note_others(message["calls"])
        else:
            return False
        return True
