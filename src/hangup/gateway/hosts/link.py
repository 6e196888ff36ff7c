"""This gateway's part in the shared state: writes its snapshot many times a second, obeys orders, leads if nobody does.

Without the store, this gateway keeps what it holds, and uses its part of what it holds nothing of: a share that is configured
for a start without the store, or one of as many as there were gateways. If the store stays away, it uses that part of
everything: what it held was right for the load of that moment, and would refuse calls here while places are idle elsewhere. If
only this gateway is cut off, the leader has found that it lives, and has set that part aside.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hangup.config.limits import ProcessLimits
from hangup.core.clocks import Backoff
from hangup.core.members import Lead, LeadWatch, TokenLevel, WholeFigures, equal_part, part_alone
from hangup.core.members.pace import HOSTS_KEEP_S, HOSTS_LOOK_S, HOSTS_SILENT_S
from hangup.gateway.gateway import Gateway
from hangup.gateway.hosts import life
from hangup.gateway.hosts.leading import OBSERVATIONS, Leading
from hangup.gateway.hosts.life import Life, LifePort
from hangup.gateway.hosts.lines import HubLine
from hangup.gateway.hosts.mail import Mail
from hangup.gateway.hosts.questions import Questions
from hangup.gateway.hosts.store import Exchange, SharedStateFailed, Store
from hangup.gateway.members.member import Member
from hangup.gateway.members.peers import MemberPeers
from hangup.gateway.members.stop_hub import Reply
from hangup.tasks import TASKS, Tasks

_REPORT_S = 0.05  # between two snapshots while nobody waits for a place,
_HURRY_S = 0.02  # while somebody may,
_SOON_S = 0.01  # and after a call had to wait for what may be unused elsewhere
_PAUSE_S = (0.1, 0.5)  # before another attempt to reach the store
_JOIN_S = 5.0  # a gateway that has no orders by then uses its part
_ALONE_S = 2.0  # without the store: after this, everybody judges his own calls alone


class SharingSettings(Protocol):
    @property
    def shared_state(self) -> str: ...

    @property
    def shared_state_name(self) -> str: ...

    @property
    def shared_state_alone_share(self) -> float: ...

    @property
    def peer_host(self) -> str: ...


class StoreLink:
    def __init__(
        self,
        settings: SharingSettings,
        limits: ProcessLimits,
        peer_ports: Sequence[int],
        password: Callable[[], str] | None = None,
    ) -> None:
        """`password` is asked for each new connection to the store, if its address has none."""
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.store = Store(settings.shared_state, settings.shared_state_name, limits.shared_state_timeout_s, password)
        self.up = False  # the last exchange with the store succeeded
        self.leader = ""  # the gateway that leads, by the last exchange
        self.members = 0  # gateways that share the state, by the leader's last order,
        self._rank = 0  # and this one's number among them
        self._alone_share = settings.shared_state_alone_share
        self._peer_host, self._peer_ports = settings.peer_host, peer_ports
        self._silence_max_s = limits.gateway_silence_s
        self._life = LifePort(self.name)
        self._address: life.Address | None = None
        self._watch = LeadWatch(HOSTS_SILENT_S, HOSTS_LOOK_S)
        self._leading: Leading | None = None
        self._sequence = 0
        self._whole = True  # the store does not know this gateway's calls
        self._reached = False  # the leader has reached this gateway at its address,
        self._reached_leader: str = ""  # and this one that leader
        self._asked_leader = ""
        self._considered = 0
        self._levels_seen = (0, 0)  # term and number of the latest levels of tenants' tokens,
        self._output_seen = (0, 0)  # and of the latest news that backends send something to others
        self._lost_at: float | None = None  # when the store was lost
        self._joined = asyncio.Event()  # has orders of a leader, or knows that there is no store
        self._wake = asyncio.Event()
        self._pauses = Backoff(*_PAUSE_S)
        self._tasks = Tasks("shared state")
        self.failure = ""  # why the store cannot be used
        self._keeping: asyncio.Task[None] | None = None
        self.peers = MemberPeers(self._send_to_hub, "gateway", limits.shared_state_timeout_s, self._step_down)
        self._mail = Mail(self.store, self.name, self._deliver, self._step_down)
        self._line = HubLine(self.name, self._mail.post, self.peers.handle, self.peers.hand_in_all)
        self.questions = Questions(self.name, self._mail.post)
        self._stepping_down = False  # this gateway must lead no longer, or begin anew
        self._saving = asyncio.Lock()

    def start(self, gateway: Gateway) -> None:
        self._gateway, self._started_at = gateway, time.monotonic()
        self._member = Member(gateway, self._wake.set)
        self.peers.start(gateway)
        self._mail.start()
        self._keeping = TASKS.keep("shared state", self._run)

    async def joined(self, within_s: float) -> bool:
        """Wait for so long until this gateway may use places, so that the first calls do not wait; return whether it may."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._joined.wait()
        if not self._joined.is_set() and time.monotonic() > self._started_at + _JOIN_S:
            self._member.assume(self._part, keep=True)
            self._joined.set()
        return self._joined.is_set()

    async def close(self) -> None:
        """Leave: others may use at once what this gateway held and did not use."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._member.close()
        await self.peers.close()
        await self.questions.close()
        if self._leading is not None and self.up:
            with contextlib.suppress(SharedStateFailed):
                await self._write_records(self._leading)
        await self._stop_leading()
        self._line.close()
        await self._tasks.close()
        await self._mail.close()
        if self.up:
            with contextlib.suppress(SharedStateFailed):  # the others will find that this process is gone
                await self.store.leave(self.name, self._snapshot(left=True), self._watch.term)
        self._life.close()  # not before: a slow farewell must not be taken for a death
        await self.store.close()

    # The loop

    async def _run(self) -> None:
        while True:
            try:
                await self._exchange()
            except Exception as error:  # what others left in the store may be anything, and this loop must go on
                self._failed(error if isinstance(error, SharedStateFailed) else self._unreadable(error))
                await asyncio.sleep(self._pauses.failed(time.monotonic()))
                continue
            self._worked()
            await asyncio.sleep(_SOON_S)
            try:
                async with asyncio.timeout((_HURRY_S if self._member.in_hurry() else _REPORT_S) - _SOON_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _exchange(self) -> None:
        if not self.up:
            await self.store.check()
            await self._open_life_port()
        if self._stepping_down:
            self._stepping_down = False
            await self._stop_leading()
        whole = self._whole
        calls = self._member.report_all_calls() if whole else self._member.calls()
        snapshot = self._snapshot() | {"live": calls.live, "output": _ages(calls.output), "in_engines": calls.in_engines}
        self._whole = True  # unless this works
        found = await self.store.exchange(self.name, snapshot, calls, whole=whole, leads=self._leading is not None)
        self._whole = not found.has_calls
        self.leader = found.lead.member if found.lead is not None else ""
        self._obey(found)
        self._follow(found.lead)
        if seen := self._member.observations():
            self._send_to_hub(OBSERVATIONS, {"seen": seen})
        if self._leading is not None:
            await self._lead(self._leading, found)
        if self._watch.look(time.monotonic(), found.lead) and self._leading is None:
            await self._take_lead(found.lead)

    def _snapshot(self, *, left: bool = False) -> dict[str, Any]:
        self._sequence += 1
        return {
            "seq": self._sequence,
            "term": self._watch.term,
            "left": left,
            "address": self._address,
            "reached": self._reached,
            "places": [place.row() for place in self._member.places()],
            "learned": [] if left else [tuple(row) for row in self._member.learned()],
            "asks": [] if left else self._member.asks(),
            "tenants": [] if left else [tuple(row) for row in self._member.tenants()],
            "tokens": [tuple(row) for row in self._member.token_totals()],
        }

    # The store works, or not

    def _failed(self, failure: SharedStateFailed) -> None:
        if self.up or str(failure) != self.failure:
            self.failure = str(failure)
            self._gateway.log.event("shared_state_lost", error=str(failure), members=self.members)
        now = time.monotonic()
        if self.up or self._lost_at is None:
            self._lost_at = now
        self.up = False
        self._member.assume(self._part, keep=now < self._lost_at + HOSTS_KEEP_S)
        if not self.members:
            self._member.assume_tokens(self._alone_share)
        if now >= self._lost_at + _ALONE_S:
            self._line.close()
            self.peers.go_alone()
        self._joined.set()

    def _unreadable(self, error: Exception) -> SharedStateFailed:
        """Describe what another program, or another version of hangup, has left in the store."""
        what = f"{type(error).__name__}: {error}"
        return SharedStateFailed(f"cannot use {self.store.address}: it holds what this version cannot read ({what})")

    def _worked(self) -> None:
        if not self.up:
            self.up, self.failure = True, ""
            self._pauses = Backoff(*_PAUSE_S)
            self._gateway.log.event("shared_state_found", store=self.store.address, gateway=self.name)
        if self.peers.alone:
            self.peers.follow()
            if self._leading is not None:
                self._leading.judge()

    def _part(self, capacity: int) -> int:
        """Return how many of so many places this gateway may use without the store."""
        return equal_part(capacity, self.members, self._rank) if self.members else part_alone(capacity, self._alone_share)

    async def _open_life_port(self) -> None:
        if self._address is None:
            host = self._peer_host or await self.store.own_host()
            try:
                self._address = await self._life.open(host, self._peer_ports)
            except (OSError, OverflowError) as error:  # the latter: --workers auto, and a port beyond the last one
                where = f"{host}:{self._peer_ports[-1]}"
                self._gateway.log.event("peer_port_failed", address=where, error=getattr(error, "strerror", None) or str(error))

    # Orders

    def _obey(self, found: Exchange) -> None:
        orders, lead = found.orders, found.lead
        if lead is None or orders.get("term") != lead.term or lead.term < self._watch.term:
            return
        self.members, self._rank = orders["members"], orders["rank"]
        self.questions.know(orders["names"])
        self._reached = self._reached or orders["reached"]
        grants = [(resource, allowed, number) for resource, (allowed, number) in orders["grants"].items()]
        self._member.take_grants(grants)
        if (output := orders.get("output")) is not None and (lead.term, output["n"]) > self._output_seen:
            now, self._output_seen = time.monotonic(), (lead.term, output["n"])
            self._member.note_output({backend: now - age_s for backend, age_s in output["ages"].items()})
        if (others := orders.get("others")) is not None:
            self._member.note_others(others)
        if (whole := orders.get("whole")) is not None:
            self._member.note_whole([WholeFigures(*row) for row in whole])
        if (served := orders.get("served")) is not None:
            self._member.note_served(served, lead.term)
        if (considered := orders.get("considered")) is not None and considered["seq"] > self._considered:
            self._considered = considered["seq"]
            self._member.considered(considered["more_may_come"])
        if (tokens := orders.get("tokens")) is not None and (lead.term, tokens["n"]) > self._levels_seen:
            self._levels_seen = lead.term, tokens["n"]
            self._member.take_token_levels([TokenLevel(*row) for row in tokens["levels"]], tokens["members"])
        if grants or whole:  # of an engine that is found to be full, there may be nothing to grant yet
            self._joined.set()
        if lead.member not in (self.name, self._asked_leader) and orders["leader"]:
            self._asked_leader = lead.member
            self._tasks.start(self._try_to_reach(lead.member, tuple(orders["leader"])))

    async def _try_to_reach(self, leader: str, address: life.Address) -> None:
        if await life.ask(address, leader) is Life.LIVES:
            self._reached_leader = leader

    # Ended calls

    def _follow(self, lead: Lead | None) -> None:
        """Tell the leader of ended calls, and do what it asks for, unless that is this gateway itself."""
        if lead is None or lead.member == self.name or lead.term < self._watch.term:
            self._line.close()
        elif not self.peers.alone:
            self._line.follow(lead.member, lead.term)

    def _send_to_hub(self, kind: str, fields: dict[str, Any]) -> None:
        if self._leading is not None:
            self._leading.take_own(kind, fields)
        else:
            self._line.send(kind, fields)

    def _deliver(self, entry: dict[str, Any]) -> None:
        """Take something from the mail."""
        if "to_leader" not in entry:
            self.questions.receive(entry)
        elif not entry["to_leader"]:
            self._line.receive(entry)
        elif self._leading is not None and entry["term"] == self._leading.term:
            self._leading.lines.receive(entry)

    def post_as_leader(self, to: str, entry: dict[str, Any]) -> None:
        self._mail.post(to, entry, entry["term"])

    def tell_self(self, kind: str, fields: dict[str, Any]) -> None:
        self.peers.handle(kind, fields)

    def hand_in_all(self) -> None:
        self.peers.hand_in_all()

    def save_records(self, reply: Reply) -> None:
        self._tasks.start(self._save(self._leading, reply))

    async def _save(self, leading: Leading | None, reply: Reply) -> None:
        saved = False
        with contextlib.suppress(SharedStateFailed):
            saved = leading is not None and await self._write_records(leading)
        reply(saved)
        if not saved and leading is self._leading:
            self._step_down()

    async def _write_records(self, leading: Leading) -> bool:
        """Copy to the store what the next leader must know; return False if somebody else leads."""
        async with self._saving:
            changes = leading.records.take_changes(time.monotonic())
            if changes is None:
                return True
            try:
                return await self.store.record(self.name, leading.term, changes)
            except SharedStateFailed:
                leading.records.copy_lost()
                raise

    def _step_down(self) -> None:
        """Lead no longer: somebody else does, or the next leader could not know what this one does."""
        self._stepping_down = True
        self._wake.set()

    # The lead

    async def _take_lead(self, seen: Lead | None) -> None:
        term = self._watch.term + 1
        heritage = await self.store.take_lead(self.name, term, seen)
        if heritage is None:
            return
        self._line.close()
        self._gateway.log.event("shared_state_led", gateway=self.name, term=term)
        self._leading = Leading(
            self,
            term,
            time.monotonic(),
            self._gateway.log.event,
            self._silence_max_s,
            address=self._address,
            earlier=seen.member if seen is not None else "",
            heritage=heritage,
            reached=[self._reached_leader] if self._reached_leader else [],
        )
        self._leading.learn_from(self._member.limits())

    async def _stop_leading(self) -> None:
        if self._leading is not None:
            leading, self._leading = self._leading, None
            self.peers.follow()
            await leading.close()

    async def _lead(self, leading: Leading, found: Exchange) -> None:
        highest = max(snapshot["term"] for snapshot in found.snapshots.values())
        if found.lead is None or found.lead.member != self.name or found.lead.term != leading.term or highest > leading.term:
            self._watch.note_term(highest)
            await self._stop_leading()
            return
        leading.read(time.monotonic(), found.snapshots)
        if leading.settled:
            for name in sorted(leading.dead):
                calls = leading.not_ended(await self.store.calls_of(name))
                self._member.stop_calls(name, calls, "gateway")
                leading.bury(name, len(calls))
        self.peers.send_now()
        if not await self._write_records(leading):  # before the store forgets the calls of the dead
            await self._stop_leading()
            return
        leading.beat += 1
        lead = Lead(self.name, leading.term, leading.beat)
        gone, orders = set(leading.gone), leading.orders_to_write()
        try:
            leads = await self.store.write_orders(lead, orders, gone)
        except SharedStateFailed:
            leading.changed |= orders.keys()  # they are not in the store, or nobody knows
            raise
        if leads:
            leading.gone -= gone
        else:
            await self._stop_leading()


def _ages(output: dict[str, float]) -> dict[str, float]:
    """Return how long ago each moment was: other hosts have other clocks."""
    now = time.monotonic()
    return {backend: round(now - at, 3) for backend, at in output.items()}
