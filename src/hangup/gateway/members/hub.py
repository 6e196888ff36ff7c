"""The hub: notes what members report, and says what each of them must be told."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from hangup.core.admission import Observation, SharedLimit
from hangup.core.members import (
    Grant,
    LearnedFigures,
    LearnedPlaces,
    LeftCall,
    LeftCalls,
    Members,
    PlaceAllocator,
    PlaceReport,
    TenantUse,
    TokenBank,
    TokensCharged,
    WholeFigures,
)
from hangup.core.members.pace import DEAD_HOLD_S, LOOK_S, SILENT_S
from hangup.gateway.members.member import CallsReport
from hangup.gateway.members.stop_hub import Reply, StopHub

_LEVELS_S = 0.05  # between two messages about tenants' tokens

Tell = Callable[[str, str, dict[str, Any]], None]  # a member, the kind of the message, and its fields


class Reported:
    """What a member reported last of its calls."""

    __slots__ = ("calls", "in_engines", "last_output_at", "live", "others", "served_by_others", "whole")

    def __init__(self) -> None:
        self.live = 0
        self.last_output_at: dict[str, float] = {}  # of each backend, by the hub's clock
        self.calls: dict[str, LeftCall] = {}  # in engines
        self.in_engines: dict[str, int] = {}  # how many, by backend
        self.others: dict[str, int] = {}  # what it was told of the others,
        self.served_by_others: dict[str, float] = {}  # of what they served tenants,
        self.whole: list[WholeFigures] = []  # and of all calls at backends whose slots are learned

    def note(self, report: CallsReport) -> None:
        self.live, self.last_output_at, self.in_engines = report.live, report.output, report.in_engines
        for call in report.new:
            self.calls[call.id] = call
        for id in report.gone:
            self.calls.pop(id, None)


class Hub:
    """`tell` sends a message to a member, or drops it if that member is gone."""

    def __init__(
        self,
        tell: Tell,
        silent_s: float = SILENT_S,
        look_s: float = LOOK_S,
        save: Callable[[Reply], None] | None = None,
    ) -> None:
        """`save`: this process is the leader itself, and copies its records of ended calls (`StopHub`)."""
        self._tell = tell
        self.members = Members(silent_s, look_s, elects=save is None)
        self.stops = StopHub(tell, self.members, save)
        self._places = PlaceAllocator(DEAD_HOLD_S)
        self._learned = LearnedPlaces()
        self._left = LeftCalls()
        self._tokens = TokenBank()
        self._levels_sent_at = -math.inf
        self._reported: dict[str, Reported] = {}

    def reported(self, member: str) -> Reported:
        return self._reported.setdefault(member, Reported())

    # Members

    def join(self, member: str) -> None:
        self.members.join(member)
        self.stops.joined(member)
        self._send_token_levels([member], time.monotonic())

    def leave(self, member: str, now: float, *, died: bool) -> Reported:
        """Take back all that a member had; return its last report."""
        had_joined = member in self.members.names
        self.members.leave(member)
        self.stops.left(member, died=died and had_joined)
        self._tokens.leave(member)
        self._learned.leave(member, now + DEAD_HOLD_S)
        self._send(self._places.leave(member, now, died=died))
        return self._reported.pop(member, Reported())

    def look(self, now: float) -> None:
        """Judge who is silent, and free what dead members held. Call this every `look_s`."""
        self.members.look(now)
        self.stops.follow_leader()
        self._send(self._places.pass_time(now))
        self._pass_on_service()
        for member in self.members.names:
            self._pass_on_whole(member)
        if now - self._levels_sent_at >= _LEVELS_S:
            self._send_token_levels(self.members.names, now)

    # Reports

    def note_places(self, member: str, places: Iterable[PlaceReport], asks: Collection[str]) -> None:
        """Note what a member holds. `asks`: it holds calls back until it knows whether there is more of these resources."""
        self._send(self._places.report(member, places))
        if asks:
            more = {resource: self._places.expects_more(resource) for resource in asks}
            self._tell(member, "considered", {"more_may_come": more})

    def note_learned(self, member: str, rows: Iterable[LearnedFigures]) -> None:
        """Note what a member has at backends whose slots are learned."""
        self._send(self._places.set_learned(self._learned.note(member, rows, time.monotonic())))
        self._pass_on_whole(member)

    def note_observations(self, seen: Mapping[str, Iterable[Iterable[float]]]) -> None:
        """Learn from what a member saw of its calls there."""
        rows: dict[str, list[Observation]] = {
            name: [tuple(row) for row in mine] for name, mine in seen.items()
        }  # JSON has lists
        self._send(self._places.set_learned(self._learned.observe(rows, time.monotonic())))

    def learn_from(self, limits: Mapping[str, SharedLimit]) -> None:
        """Begin with what the hub before this one had learned of backends, as far as this process knows it."""
        self._learned.go_on_from(limits, time.monotonic())

    def _pass_on_whole(self, member: str) -> None:
        reported, whole = self.reported(member), self._learned.whole_for(member, time.monotonic())
        if whole != reported.whole:
            reported.whole = whole
            self._tell(member, "whole", {"rows": [tuple(row) for row in whole]})

    def note_tenants(self, member: str, uses: Iterable[TenantUse]) -> None:
        """Note which tenants have calls at a member."""
        self._places.note_tenants(member, uses)

    def _pass_on_service(self) -> None:
        """Tell members what the others served the tenants that wait anywhere: then their queues take it into account."""
        for member in self.members.names:
            reported, served = self.reported(member), self._places.tenants.served_by_others(member)
            if served != reported.served_by_others:
                reported.served_by_others = served
                self._tell(member, "served", {"by_others": served})

    def note_tokens(self, member: str, rows: Iterable[TokensCharged]) -> None:
        """Note what a member charged tenants so far, and let everybody know what is left, now or soon."""
        now = time.monotonic()
        self._tokens.note(member, rows, now)
        if now - self._levels_sent_at >= _LEVELS_S:
            self._send_token_levels(self.members.names, now)

    def learn_tokens(self, member: str, rows: Iterable[TokensCharged]) -> None:
        """Note what a member had charged before this hub knew it."""
        self._tokens.learn(member, rows, time.monotonic())

    def _send_token_levels(self, members: Iterable[str], now: float) -> None:
        if not len(self._tokens):
            return
        self._levels_sent_at = now
        count = len(self.members.names)
        for member in members:
            levels = [tuple(level) for level in self._tokens.levels(member, now)]
            self._tell(member, "token_levels", {"levels": levels, "members": count})

    def learn_places(self, member: str, places: Iterable[PlaceReport]) -> None:
        """Note what a member holds, and grant nothing yet: this hub is new, and must know everybody first."""
        self._places.note(member, places)

    def granted_to(self, member: str) -> dict[str, int]:
        """Return the most places that a member may hold of each resource."""
        return self._places.granted_to(member)

    def set_aside(self, member: str) -> None:
        """Keep an equal part for a member that is cut off from the others, and will use that much without asking."""
        self._send(self._places.set_aside(member, len(self.members.names)))

    def end_set_aside(self, member: str) -> None:
        self._send(self._places.end_set_aside(member))

    def share_places(self) -> None:
        """Begin to grant: everybody is known."""
        self._send(self._places.share())

    def calls_in(self, backend: str) -> set[str]:
        """Return the ids of the calls that members have in a backend, by their last reports."""
        return {call.id for reported in self._reported.values() for call in reported.calls.values() if call.backend == backend}

    def note_calls(self, member: str, report: CallsReport) -> None:
        self.reported(member).note(report)

    def pass_on_output(self, members: Iterable[str], more_than_s: float = 0.0) -> None:
        """Tell these members when the backends last sent anything to any of them, if that is so much later than they know."""
        latest: dict[str, float] = {}
        for reported in self._reported.values():
            for backend, at in reported.last_output_at.items():
                latest[backend] = max(at, latest.get(backend, at))
        for member in members:
            known = self.reported(member).last_output_at
            behind = {name: at for name, at in latest.items() if at > known.get(name, -math.inf) + more_than_s}
            if behind:
                self._tell(member, "output", {"at": behind})

    def pass_on_calls(self, members: Iterable[str]) -> None:
        """Tell these members how many calls the others have at each backend, if that has changed."""
        total = Counter[str]()
        for reported in self._reported.values():
            total.update(reported.in_engines)
        for member in members:
            mine = self.reported(member)
            others = {name: count for name, calls in total.items() if (count := calls - mine.in_engines.get(name, 0)) > 0}
            if others != mine.others:
                mine.others = others
                self._tell(member, "others", {"calls": others})

    # The calls of dead members

    def add_left_calls(self, member: str, calls: Iterable[LeftCall]) -> None:
        """Take the calls that a dead member had in engines, by its last report; some may have ended since then."""
        self._left.add(member, (call for call in calls if not self.stops.is_open(call.backend, call.key)))

    def ask_leader_to_stop(self) -> None:
        """Ask the leader to stop the calls of dead members, unless it was asked already."""
        leader, term = self.members.leader, self.members.term
        if leader is not None and (calls := self._left.take_for(term)):
            rows = {name: [call.row() for call in left] for name, left in calls.items()}
            self._tell(leader, "stop_calls", {"term": term, "calls": rows})

    def note_stopping(self, term: int, members: Iterable[str]) -> None:
        """Note that the leader of this term takes care of these members' calls."""
        self._left.confirmed(term, members)

    def _send(self, grants: Iterable[Grant]) -> None:
        by_member: dict[str, list[tuple[str, int, int]]] = {}
        for grant in grants:
            by_member.setdefault(grant.member, []).append((grant.resource, grant.allowed, grant.number))
        for member, rows in by_member.items():
            self._tell(member, "grants", {"grants": rows})
