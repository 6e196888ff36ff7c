"""What the leading gateway does: reads all snapshots, shares places, and takes care of gateways that died.

A new leader knows nobody. It grants nothing before every gateway in the store has confirmed its term (from then on, that one
obeys no earlier leader, so what it reports is all that it holds) or was found silent; of those it assumes the most that they
may hold. If the store was empty, it also waits for a second, in which the gateways that are there report.

From then on it also judges the engines for all (`gateway/members/stop_hub.py`), and goes on where the leader before it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from hangup.core.admission import SharedLimit
from hangup.core.members import LearnedFigures, LeftCall, PlaceReport, TenantUse, TokensCharged
from hangup.core.members.pace import HOSTS_LOOK_S, HOSTS_SET_ASIDE_S, HOSTS_SILENT_S
from hangup.gateway.hosts import life
from hangup.gateway.hosts.life import Life
from hangup.gateway.hosts.lines import HELLO, MemberLines
from hangup.gateway.hosts.store import Heritage
from hangup.gateway.members.hub import Hub
from hangup.gateway.members.member import CallsReport
from hangup.gateway.members.stop_hub import Reply
from hangup.tasks import Tasks

_OUTPUT_S = 0.5  # how often gateways learn that a backend sends something to others
OBSERVATIONS = "observations"  # what a member saw of its calls at backends whose slots are learned
EMPTY_WAIT_S = 1.0  # a leader that found the store empty waits this long for the others

Snapshot = dict[str, Any]
LogEvent = Callable[..., None]


class LeaderPorts(Protocol):
    """What the leader needs of the gateway that it is."""

    @property
    def name(self) -> str: ...

    def post_as_leader(self, to: str, entry: dict[str, Any]) -> None:
        """Send to another gateway."""

    def tell_self(self, kind: str, fields: dict[str, Any]) -> None:
        """Handle a message of the hub to this gateway."""

    def hand_in_all(self) -> None:
        """Tell the hub all ended calls of this gateway that are not known to have stopped."""

    def save_records(self, reply: Reply) -> None:
        """Copy the hub's records to the store, and then reply whether that was possible."""


class Leading:
    def __init__(
        self,
        ports: LeaderPorts,
        term: int,
        now: float,
        log_event: LogEvent,
        silence_max_s: float,
        *,
        address: life.Address | None,
        earlier: str,
        heritage: Heritage,
        reached: Collection[str],
    ) -> None:
        """`earlier`: the leader before, whose beat stood still; "": nobody led, so the store may have been emptied. `reached`:
        members that are known to have answered at their own address."""
        self._ports = ports
        self.term = term
        self.beat = 0
        self.orders: dict[str, dict[str, Any]] = {}  # all that each member must know
        self.changed: set[str] = set()  # members whose orders are not in the store yet
        self.dead: set[str] = set()  # members whose calls must be stopped
        self.gone: set[str] = set()  # members to be removed from the store
        self.settled = False
        self._log_event = log_event
        self._silence_max_s = silence_max_s
        self._address = address  # of this gateway itself
        self._earlier = earlier
        self._earlier_orders = heritage.orders
        self._settle_from = now + (0.0 if earlier else EMPTY_WAIT_S)
        self._output_from = now
        self._numbered = 0  # parts of orders that count only once
        self._charging: set[str] = set()  # members whose charges are known
        self._hub = Hub(self._tell, HOSTS_SILENT_S, HOSTS_LOOK_S, save=ports.save_records)
        self.records = self._hub.stops.records
        self.records.restore(heritage.calls, heritage.steps, now)
        self.lines = MemberLines(ports.name, term, ports.post_as_leader, self._take_message)
        self._snapshots: dict[str, Snapshot] = {}  # the latest of each member
        self._places_noted: dict[str, list[list[object]]] = {}  # what the hub knows of each
        self._confirmed: set[str] = set()  # members that obey no earlier leader
        self._reached = set(reached)  # members that have answered at their own address
        self._asking: set[str] = set()
        self._asked: set[str] = set()
        self._silent: set[str] = set()
        self._cut_off: set[str] = set()  # of the silent ones, those that live, and have a part set aside
        self._tasks = Tasks("gateway life")

    async def close(self) -> None:
        self.lines.close()
        self._hub.stops.close()
        await self._tasks.close()

    # Snapshots

    def read(self, now: float, snapshots: Mapping[str, Snapshot]) -> None:
        """Take in all snapshots of the store."""
        for name, snapshot in snapshots.items():
            if name in self.gone or name in self.dead:
                continue
            before = self._snapshots.get(name)
            if before is not None and before["seq"] == snapshot["seq"]:
                continue
            self._snapshots[name] = snapshot
            self._take_in(name, snapshot, now, is_new=before is None)
        self._hub.look(now)
        self._settle(now)
        self._look_after_silent()
        if now >= self._output_from:
            self._output_from = now + _OUTPUT_S
            self._hub.pass_on_output(self._confirmed, _OUTPUT_S)  # moments get later on the way from host to host
            self._hub.pass_on_calls(self._confirmed)

    def _take_in(self, name: str, snapshot: Snapshot, now: float, *, is_new: bool) -> None:
        members = self._hub.members
        if is_new:
            members.join(name)
            self.changed |= self.orders.keys()  # each must know how many there are
            if snapshot["reached"]:
                self._reached.add(name)
        elif name == self._earlier:
            self._earlier = ""  # it is still there
        members.note_message(name)
        if name in self._silent:
            self._silent.discard(name)
            self._log_event("gateway_back", gateway=name)
        if snapshot["left"]:
            self._hub.learn_places(name, [_used(row) for row in _places(snapshot)])
            self._forget(name, now, died=False)
            self._log_event("gateway_left", gateway=name)
            return
        if name not in self._asked:
            self._ask(name)
        if snapshot["term"] == self.term:
            if name not in self._confirmed:
                self._confirmed.add(name)
                self.changed.add(name)
                self._order(name)
                self._log_event("gateway_joined", gateway=name, term=self.term)
            if self.settled:
                self._note(name, snapshot, now)

    def _note(self, name: str, snapshot: Snapshot, now: float) -> None:
        output = {backend: now - age_s for backend, age_s in snapshot["output"].items()}
        self._hub.note_calls(name, CallsReport([], [], snapshot["live"], output, snapshot["in_engines"]))
        self._hub.note_tenants(name, [TenantUse(*row) for row in snapshot["tenants"]])
        self._hub.note_learned(name, [LearnedFigures(*row) for row in snapshot["learned"]])
        if snapshot["asks"] or snapshot["places"] != self._places_noted.get(name):  # most say what they said before
            self._places_noted[name] = snapshot["places"]
            self._hub.note_places(name, _places(snapshot), snapshot["asks"])
        charged = [TokensCharged(*row) for row in snapshot["tokens"]]
        if name in self._charging:
            self._hub.note_tokens(name, charged)
        else:
            self._charging.add(name)
            self._hub.learn_tokens(name, charged)
        if name in self._cut_off:  # it is back, and it is known now what it holds
            self._cut_off.discard(name)
            self._hub.end_set_aside(name)

    def _settle(self, now: float) -> None:
        """Begin to share once everybody is known."""
        if self.settled or now < self._settle_from:
            return
        unknown = [name for name in self._snapshots if name not in self._confirmed]
        if any(not self.is_silent(name) and name not in self.dead for name in unknown):
            return
        for name, snapshot in self._snapshots.items():
            rows = _places(snapshot)
            if name in unknown:
                rows = [_at_most(row, self._earlier_orders.get(name, {"grants": {}, "most": {}})) for row in rows]
            self._hub.learn_places(name, rows)
        for name, snapshot in self._snapshots.items():
            self._hub.note_learned(name, [LearnedFigures(*row) for row in snapshot["learned"]])
        self.settled = True
        self.judge()
        self._hub.share_places()
        for name in self._confirmed:
            self._note(name, self._snapshots[name], now)

    # The judgement of the engines

    def judge(self) -> None:
        """Let this gateway judge the engines for all, if everybody is known."""
        if self.settled:
            self._ports.hand_in_all()
            self._hub.members.lead_by(self._ports.name, self.term)
            self._hub.stops.tell_leader(self._ports.name)

    def take_own(self, kind: str, fields: dict[str, Any]) -> None:
        """Handle a message of this gateway itself to the hub."""
        self._take_message(self._ports.name, kind, fields)

    def learn_from(self, limits: Mapping[str, SharedLimit]) -> None:
        """Begin with what the leader before this one had learned of backends, as far as this gateway knows it."""
        self._hub.learn_from(limits)

    def _take_message(self, name: str, kind: str, fields: dict[str, Any]) -> None:
        if kind == HELLO:
            self._hub.stops.joined(name)
            self._hub.stops.tell_leader(name)
        elif kind == OBSERVATIONS:
            self._hub.note_observations(fields["seen"])
        else:
            self._hub.stops.handle(name, kind, fields)

    def not_ended(self, calls: Iterable[LeftCall]) -> list[LeftCall]:
        """Return those of a dead member's calls that are not known to have ended before."""
        return [call for call in calls if not self._hub.stops.is_open(call.backend, call.key)]

    # Life

    def _look_after_silent(self) -> None:
        for name in list(self._snapshots):
            if self.is_silent(name):
                if name not in self._silent:
                    self._silent.add(name)
                    self._log_event("gateway_silent", gateway=name)
                self._ask(name)

    def _ask(self, name: str) -> None:
        """Ask a gateway itself whether it lives."""
        address = self._snapshots[name]["address"]
        if name not in self._asking and address:
            self._asking.add(name)
            self._tasks.start(self._judge(name, (address[0], address[1])))
        elif not address:
            self._judged(name, Life.UNKNOWN)

    async def _judge(self, name: str, address: life.Address) -> None:
        try:
            found = await life.ask(address, name)
        finally:
            self._asking.discard(name)
        self._asked.add(name)
        if name in self._snapshots:
            self._judged(name, found)

    def _judged(self, name: str, found: Life) -> None:
        if found is Life.LIVES and name not in self._reached:
            self._reached.add(name)
            self._order(name)["reached"] = True
            self.changed.add(name)
        if not self.is_silent(name):
            return
        is_dead = found in (Life.DEAD, Life.REFUSED) and name in self._reached  # else the address may be somebody else's
        silent_s = self._hub.members.silent_s(name)
        if found is Life.LIVES and silent_s >= HOSTS_SET_ASIDE_S and self.settled and name not in self._cut_off:
            self._cut_off.add(name)
            self._hub.set_aside(name)
        if found is not Life.LIVES and silent_s >= self._silence_max_s:
            is_dead = True
        if is_dead:
            self.dead.add(name)

    def bury(self, name: str, calls: int) -> None:
        """Take back what a dead gateway held; its calls are being stopped."""
        self._log_event("gateway_died", gateway=name, calls=calls)
        self.dead.discard(name)
        self._forget(name, time.monotonic(), died=True)

    def _forget(self, name: str, now: float, *, died: bool) -> None:
        self.lines.drop(name)
        self._hub.leave(name, now, died=died)
        self.gone.add(name)
        self._snapshots.pop(name, None)
        self._places_noted.pop(name, None)
        self.orders.pop(name, None)
        for names in (self._confirmed, self._silent, self._cut_off, self._asked, self._reached, self._charging):
            names.discard(name)
        self.changed = set(self.orders)  # each must know how many there are

    @property
    def members(self) -> int:
        return len(self._snapshots)

    def is_silent(self, name: str) -> bool:
        return name == self._earlier or self._hub.members.is_silent(name)

    # Orders

    def _order(self, name: str) -> dict[str, Any]:
        return self.orders.setdefault(name, {"term": self.term, "grants": {}, "leader": self._address, "reached": False})

    def orders_to_write(self) -> dict[str, dict[str, Any]]:
        """Return the orders that have changed since the last time."""
        ranks = {name: rank for rank, name in enumerate(sorted(self._snapshots))}
        written = {
            name: self.orders[name]
            | {
                "members": self.members,
                "names": list(ranks),
                "rank": ranks.get(name, 0),
                "most": self._hub.granted_to(name),
            }
            for name in self.changed
            if name in self.orders
        }
        self.changed.clear()
        return written

    def _tell(self, name: str, kind: str, fields: dict[str, Any]) -> None:
        """Note what a member must know; it gets the latest of each kind. What must not be missed goes through its line."""
        if kind not in ("grants", "output", "others", "considered", "token_levels", "served", "whole"):
            if name == self._ports.name:
                self._ports.tell_self(kind, fields)
            else:
                self.lines.tell(name, kind, fields)
            return
        order = self.orders.get(name)
        if order is None:
            return
        if kind == "grants":
            order["grants"] |= {resource: (allowed, number) for resource, allowed, number in fields["grants"]}
        elif kind == "output":
            now = time.monotonic()
            self._numbered += 1
            order["output"] = {"n": self._numbered, "ages": {backend: now - at for backend, at in fields["at"].items()}}
        elif kind == "others":
            order["others"] = fields["calls"]
        elif kind == "served":
            order["served"] = fields["by_others"]
        elif kind == "whole":
            order["whole"] = fields["rows"]
        elif kind == "token_levels":
            self._numbered += 1
            order["tokens"] = fields | {"n": self._numbered}
        else:
            order["considered"] = fields | {"seq": self._snapshots[name]["seq"]}
        self.changed.add(name)


def _places(snapshot: Snapshot) -> list[PlaceReport]:
    return [PlaceReport(*row) for row in snapshot["places"]]


def _used(row: PlaceReport) -> PlaceReport:
    """Return what a member that leaves still uses: calls that were cut short, and that engines may not have stopped yet."""
    return PlaceReport(row.resource, row.capacity, row.demand, row.demand, row.number)


def _at_most(row: PlaceReport, orders: dict[str, Any]) -> PlaceReport:
    """Return what a silent member may hold: after its last report, it may have obeyed the last order, or one before."""
    _, number = orders["grants"].get(row.resource, (0, 0))
    most = orders["most"].get(row.resource, 0)
    return PlaceReport(row.resource, row.capacity, max(row.held, most), row.demand, max(row.number, number))
