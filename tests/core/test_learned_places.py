"""Learned slots of the whole: what one gateway would have learned from all calls, whichever member saw them."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hangup.config import Settings
from hangup.core.admission import NO_LIMIT, Admission, BackendLoad, Evidence, SharedLimit, Ticket, WholeLimit
from hangup.core.admission.limiter import SPARE
from hangup.core.members import (
    Allotments,
    LearnedFigures,
    LearnedPlaces,
    PlaceAllocator,
    backend_places,
    learned_figures,
    shared_limits,
    take_observations,
)
from hangup.core.members.allotments import Grant

SLOTS = 8
READ_S, CALL_S = 0.05, 1.0
QUEUED_MAX = SPARE + 1  # in the engine's queue, as with one gateway: one more is tried now and then


class Engine:
    """An engine with slots that nobody knows, first come, first served."""

    def __init__(self) -> None:
        self.running: dict[Any, float] = {}  # calls, and when they end
        self.reading: dict[Any, float] = {}  # and when their first token comes
        self.waiting: list[Any] = []

    def start(self, call: Any, now: float) -> None:
        self.waiting.append(call)
        self.fill(now)

    def fill(self, now: float) -> None:
        while self.waiting and len(self.running) + len(self.reading) < SLOTS:
            self.reading[self.waiting.pop(0)] = now + READ_S

    def events(self, now: float) -> tuple[list[Any], list[Any]]:
        """Return the calls whose first token comes, and those that end."""
        first = [call for call, at in self.reading.items() if at <= now]
        for call in first:
            del self.reading[call]
            self.running[call] = now + CALL_S
        ended = [call for call, at in self.running.items() if at <= now]
        for call in ended:
            del self.running[call]
        self.fill(now)
        return first, ended


class Member:
    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self._engine = name, engine
        self.load = BackendLoad("engine")
        self.load.share()
        self.admission: Admission[Any] = Admission(Settings().limits, [self.load], lambda: 0.5)
        self.allotments = Allotments()

    def call(self, now: float) -> None:
        self.act(self.admission.arrive(Ticket(self, prompt=100, queue_by=math.inf, stream=True), "", now), now)

    def act(self, actions: Any, now: float) -> None:
        for ticket, load, _ in actions:
            if load is not None:
                self._engine.start(ticket, now)

    def use(self, grants: list[Grant], now: float) -> None:
        for grant in grants:
            if grant.member == self.name and self.allotments.take(grant):
                self.load.allot(grant.allowed)
                self.admission.fleet.load_changed(self.load)
                self.act(self.admission.dispatch(now), now)


class World:
    def __init__(self, members: int) -> None:
        self.engine, self.now = Engine(), 0.0
        self.places, self.learned = PlaceAllocator(1.0), LearnedPlaces()
        self.members = [Member(f"m{number}", self.engine) for number in range(members)]
        self.most_waiting = 0

    def report(self, member: Member) -> None:
        admission, now = member.admission, self.now
        figures = learned_figures(admission)
        learned = self.learned.note(member.name, figures, now)
        learned |= self.learned.observe(take_observations(admission, now), now)
        grants = self.places.set_learned(learned)
        grants += self.places.report(member.name, backend_places(admission, member.allotments))
        for other in self.members:
            other.use(grants, now)
            for row in self.learned.whole_for(other.name, now):
                shared_limits(other.admission)[row.backend].note_whole(*row[1:])

    def step(self, calls: int = 0, at: int = 0) -> None:
        """Let 10 ms pass, with so many new calls at a member."""
        self.now += 0.01
        first, ended = self.engine.events(self.now)
        for ticket in first:
            ticket.key.act(ticket.key.admission.first_token(ticket, self.now), self.now)
        for ticket in ended:
            ticket.key.act(ticket.key.admission.end(ticket, self.now, 50, completed=True), self.now)
        for _ in range(calls):
            self.members[at % len(self.members)].call(self.now)
        self.report(self.members[round(self.now * 100) % len(self.members)])
        self.most_waiting = max(self.most_waiting, len(self.engine.waiting))

    def run(self, seconds: float, every: int = 4) -> None:
        """Offer three times what the engine can serve, at one member after another."""
        for step in range(round(seconds * 100)):
            self.step(calls=step % every == 0, at=step // every)


def learned(members: int) -> World:
    world = World(members)
    for member in world.members:
        world.report(member)
    world.run(30)
    world.most_waiting = 0
    return world


def test_all_members_together_keep_a_few_calls_in_the_engines_queue_and_all_slots_busy() -> None:
    for members in (1, 2, 8):
        world = learned(members)
        busy = 0
        for step in range(1000):
            world.step(calls=step % 4 == 0, at=step // 4)
            busy += len(world.engine.running) + len(world.engine.reading)
        assert world.most_waiting <= QUEUED_MAX, members
        assert busy >= 0.95 * 1000 * SLOTS, members


def test_a_newcomer_under_full_load_knows_what_the_others_have_learned() -> None:
    world = learned(2)
    world.members.append(Member("new", world.engine))
    for _ in range(20):
        world.members[-1].call(world.now)
    world.run(5)
    assert world.most_waiting <= QUEUED_MAX
    assert world.members[-1].load.in_flight > 0


def test_a_new_hub_goes_on_with_what_a_member_knows() -> None:
    """It would send all that waits to the engine otherwise."""
    world = learned(2)
    assert world.members[0].admission.queue.count > 2
    before = world.learned.whole_for("m0", world.now)[0]
    world.learned, places = LearnedPlaces(), PlaceAllocator(1.0)
    world.learned.go_on_from(shared_limits(world.members[0].admission), world.now)
    for member in world.members:
        places.note(member.name, backend_places(member.admission, member.allotments))
        world.learned.note(member.name, learned_figures(member.admission), world.now)
    world.places = places
    assert world.learned.whole_for("m0", world.now)[0].evidence == before.evidence != Evidence.NONE
    world.run(5)
    assert world.most_waiting <= QUEUED_MAX


def test_an_engine_without_evidence_gets_every_call_from_everybody() -> None:
    world = World(2)
    for member in world.members:
        world.report(member)
    for member in world.members:
        for _ in range(200):
            member.call(world.now)
    assert [member.load.in_flight for member in world.members] == [200, 200]


def test_calls_that_are_on_time_again_end_the_limit() -> None:
    world = learned(2)
    for _ in range(30_000):
        world.step()
        if not any(member.admission.queue.count for member in world.members) and not world.engine.running:
            break
    for step in range(1500):
        world.step(calls=3 * (step % 50 == 0), at=step // 50)
    assert all(member.load.limit == NO_LIMIT for member in world.members)


def test_a_member_that_is_cut_off_uses_what_it_has_learned_itself() -> None:
    limit = SharedLimit()
    limit.use(3)
    assert limit.limit(0, 0, 0) == 3
    limit.go_alone()
    assert limit.limit(0, 0, 0) > 3 and limit.evidence is Evidence.NONE
    limit.use(5)
    assert limit.limit(0, 0, 0) == 5


def test_one_that_has_seen_nothing_makes_nobody_forget() -> None:
    """Each gateway recognises the engine when it starts."""
    limit = SharedLimit()
    limit.forget()
    assert limit.take_observations(0.0) == []
    limit.first_token(10, 0.1, 1.0, ahead=0, free=False, late=False, unqueued=False, visible=True)
    limit.forget()
    whole = WholeLimit()
    whole.note_running(5, 1.0)
    for row in limit.take_observations(2.0):
        whole.observe(row, 5, 2.0)
    assert whole.most_running == 0


def test_reports_of_several_members_that_no_call_waits_count_once() -> None:
    """Each of them asks the engine, and each report would double what is allowed."""
    whole = WholeLimit()
    for _ in range(2):
        whole.observe((0.0, 4, 5, -1.0), 10, 1.0)
    assert whole.evidence is Evidence.WAITING
    for member in range(8):
        whole.observe((0.0, 4, 0, -1.0), 10, 2.0 + member / 100)
    assert whole.limit(10, 2, 0) <= 12


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),  # member
            st.integers(0, 20),  # calls
            st.integers(0, 20),  # of these, without a first token
            st.sampled_from(["figures", "leaves", "overdue", "refused"]),
        ),
        max_size=60,
    )
)
def test_sums_are_those_of_the_members_that_are_there(events: list[tuple[int, int, int, str]]) -> None:
    learned, now, there = LearnedPlaces(), 0.0, dict[str, LearnedFigures]()
    for number, calls, unstarted, what in events:
        now += 0.05
        name = f"m{number}"
        if what == "leaves":
            learned.leave(name, now)
            there.pop(name, None)
        elif what == "figures":
            unread = min(unstarted, calls)
            there[name] = LearnedFigures("engine", calls, unread, 0, calls - unread, 0, True)
            assert learned.note(name, [there[name]], now)["engine"] >= 1
        elif name in there:
            kind = 1 if what == "overdue" else 2
            learned.observe({"engine": [(0.0, kind, 3.0)]}, now)
    learned.note("last", [LearnedFigures("engine", 0, 0, 0, 0, 0, True)], now + 1)
    (row,) = learned.whole_for("last", now + 2)
    assert row.running_elsewhere == sum(mine.in_flight - mine.unstarted for mine in there.values())
    assert row.unstarted_elsewhere == sum(mine.unstarted for mine in there.values())
    assert row.limit >= 1
