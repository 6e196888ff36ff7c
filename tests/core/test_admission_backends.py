"""Calls that only some backends can answer: they go nowhere else, and do not delay calls that wait for another backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hangup.config import LimitSettings
from hangup.core.admission import Action, Admission, BackendLoad, Band, HealthEvent, TenantTerms, Ticket

LIMITS = LimitSettings(queue_depth_max=100, queue_bytes_max=10_000, lifo_after_s=1e6, queue_s=1e6)
A, B, BOTH = frozenset(["a"]), frozenset(["b"]), frozenset(["a", "b"])


def new_admission(slots: int = 1, limits: LimitSettings = LIMITS, names: str = "ab", **terms: TenantTerms) -> Admission[Any]:
    admission: Admission[Any] = Admission(limits, [BackendLoad(name, slots) for name in names], lambda: 0.5)
    admission.configure(limits, terms)
    return admission


def started(actions: list[Action[Any]]) -> list[tuple[object, str]]:
    return [(action.ticket.key, action.load.name) for action in actions if action.load is not None]


def refused(actions: list[Action[Any]]) -> list[tuple[object, str]]:
    return [(action.ticket.key, action.reason.code) for action in actions if action.reason is not None]


def test_a_call_goes_only_where_it_can_be_answered() -> None:
    admission = new_admission(slots=4)
    for at in range(4):
        assert started(admission.arrive(Ticket(at, eligible=B), "t", 0.0)) == [(at, "b")]
    assert admission.arrive(Ticket(4, eligible=B), "t", 0.0) == [], "b is full, and a cannot answer it"
    assert started(admission.arrive(Ticket(5, eligible=A), "t", 0.0)) == [(5, "a")]


def test_each_backend_learns_from_every_first_token_and_all_together_from_one_in_a_millisecond() -> None:
    admission = new_admission(slots=4)
    tickets = [Ticket(at, prompt=10) for at in range(4)]
    for ticket in tickets:
        admission.arrive(ticket, "t", 0.0)
    for ticket, now in zip(tickets, (1.0, 1.0, 1.0005, 1.0011), strict=True):
        admission.first_token(ticket, now)
    assert [load.estimates.first_token.seen for load in admission.fleet.loads] == [2, 2]
    assert admission.fleet.estimates.first_token.seen == 2


def test_those_who_wait_for_a_full_backend_stand_in_nobodys_way() -> None:
    admission = new_admission()
    runs_a, runs_b = Ticket("a0", eligible=A), Ticket("b0", eligible=B)
    admission.arrive(runs_a, "t", 0.0)
    admission.arrive(runs_b, "t", 0.0)
    for at in range(1, 6):
        assert admission.arrive(Ticket(f"a{at}", eligible=A), "t", 0.1) == []
    assert admission.arrive(Ticket("b1", eligible=B), "t", 0.2) == []
    assert started(admission.end(runs_b, 1.0)) == [("b1", "b")]
    assert started(admission.end(runs_a, 1.1)) == [("a1", "a")]


def test_a_newcomer_passes_those_who_wait_for_something_else() -> None:
    admission = new_admission()
    admission.arrive(Ticket("a0", eligible=A), "t", 0.0)
    admission.arrive(Ticket("a1", eligible=A), "t", 0.0)
    assert started(admission.arrive(Ticket("b0", eligible=B), "t", 0.0)) == [("b0", "b")]
    assert admission.arrive(Ticket("b1", eligible=B), "t", 0.0) == []


def test_a_newcomer_is_not_refused_because_another_backend_is_slow() -> None:
    """There are two queues: one backend takes a minute for a call, the other a tenth of a second."""
    admission = new_admission(limits=replace(LIMITS, queue_s=5.0))
    slow, fast = Ticket("slow", eligible=A), Ticket("fast", eligible=B)
    admission.arrive(slow, "t", 0.0)
    admission.arrive(fast, "t", 0.0)
    for at in range(50):
        admission.arrive(Ticket(f"a{at}", eligible=A), "t", 0.0)
    now, refusals = 0.0, []
    for at in range(100):  # two wait there at a time: each is served within 0.2 s
        now += 0.05
        refusals += refused(admission.arrive(Ticket(f"b{at}", eligible=B, queue_by=now + 5), "t", now))
        now += 0.05
        running = [action.ticket for action in admission.end(fast, now) if action.load is not None]
        assert len(running) == 1
        fast = running[0]
    assert refusals == []


def test_a_full_queue_is_not_for_one_backend_alone() -> None:
    admission = new_admission(limits=replace(LIMITS, queue_depth_max=4))
    for eligible in (A, B, A, A, A, A):
        admission.arrive(Ticket(object(), eligible=eligible), "t", 0.0)
    actions = admission.arrive(Ticket("b1", eligible=B), "t", 0.1)
    assert [code for _, code in refused(actions)] == ["queue_evicted"]
    assert refused(admission.arrive(Ticket("a9", eligible=A), "t", 0.2)) == [("a9", "queue_full")]


def test_nobody_waits_for_a_backend_that_failed_him_while_his_others_are_free() -> None:
    admission = new_admission(names="abc")
    ticket = Ticket("x", eligible=BOTH)
    ((_, at),) = started(admission.arrive(ticket, "t", 0.0))
    other = "b" if at == "a" else "a"
    ticket.tried |= {at}
    assert started(admission.fell_back(ticket, 0.1)) == [("x", other)]
    ticket.tried |= {other}
    assert not admission.fleet.usable(ticket.tried, ticket.eligible), "c cannot answer it"
    assert admission.fleet.usable(ticket.tried)


def test_a_backend_that_is_down_is_still_the_last_resort_of_its_calls() -> None:
    admission = new_admission()
    admission.fleet.loads[0].health.apply(HealthEvent.FAILED_TOO_OFTEN)
    admission.fleet.refresh()
    assert started(admission.arrive(Ticket(1, eligible=A), "t", 0.0)) == [(1, "a")]
    assert started(admission.arrive(Ticket(2, eligible=BOTH), "t", 0.0)) == [(2, "b")]


def test_jobs_run_where_no_live_call_wants_to() -> None:
    admission = new_admission(slots=2, limits=replace(LIMITS, jobs_hold_back_share=0.0, hold_back_share=0.0))
    for at in range(3):
        admission.arrive(Ticket(f"a{at}", eligible=A), "t", 0.0)
    assert admission.queue.count == 1
    assert started(admission.arrive(Ticket("job", eligible=B, job=True), "t", 0.1)) == [("job", "b")]
    assert admission.arrive(Ticket("job2", eligible=A, job=True), "t", 0.1) == []


def test_jobs_run_on_an_idle_backend_beside_a_full_one() -> None:
    admission: Admission[Any] = Admission(LIMITS, [BackendLoad("a", 90), BackendLoad("b", 10)], lambda: 0.5)
    for at in range(90):
        admission.arrive(Ticket(at, eligible=A), "t", 0.0)
    jobs = [Ticket(f"job{at}", eligible=B, job=True) for at in range(10)]
    for job in jobs:
        for ticket, load, _ in admission.arrive(job, "t", 0.1):
            assert load is not None
            admission.first_token(ticket, 0.1)
    running = sum(job.placed_on is not None for job in jobs)
    assert 5 <= running < 10, "but for what is kept for live calls"


def test_a_job_makes_way_only_for_a_call_that_can_take_its_place() -> None:
    admission = new_admission(slots=2, limits=replace(LIMITS, jobs_hold_back_share=0.0, hold_back_share=0.0))
    job = Ticket("job", eligible=B, job=True)
    assert started(admission.arrive(job, "t", 0.0)) == [("job", "b")]
    admission.arrive(Ticket("a0", eligible=A), "t", 0.1)
    admission.arrive(Ticket("a1", eligible=A), "t", 0.1)
    assert admission.arrive(Ticket("a2", eligible=A), "t", 0.1) == [], "it cannot run on b, so nothing there makes way"
    assert job in admission.jobs.running


def test_a_place_that_gets_free_elsewhere_helps_nobody() -> None:
    """A call ended on b, whose engine may still work on it; that must not make a call that waits for a wait behind a job."""
    admission = new_admission(slots=2, limits=replace(LIMITS, jobs_hold_back_share=0.0, hold_back_share=0.0))
    gone = Ticket("gone", eligible=B)
    admission.arrive(gone, "t", 0.0)
    admission.end(gone, 0.1, hold=True)
    job = Ticket("job", eligible=A, job=True)
    assert started(admission.arrive(job, "t", 0.2)) == [("job", "a")]
    admission.first_token(job, 0.3)
    admission.arrive(Ticket("a0", eligible=A), "t", 100.0)
    assert refused(admission.arrive(Ticket("a1", eligible=A), "t", 100.0)) == [("job", "preempted")]
    assert admission.arrive(Ticket("a2", eligible=A), "t", 100.0) == [], "nobody is left who could make way"


def test_what_is_held_back_on_a_full_backend_closes_no_other() -> None:
    """One place in ten is reserved for the higher priority; nine tenths of all places are on a."""
    admission: Admission[Any] = Admission(LIMITS, [BackendLoad("a", 90), BackendLoad("b", 10)], lambda: 0.5)
    admission.configure(replace(LIMITS, hold_back_share=0.1), {"vip": TenantTerms(band=Band.HIGH)})
    for at in range(90):
        assert started(admission.arrive(Ticket(f"vip{at}", eligible=A), "vip", 0.0)) == [(f"vip{at}", "a")]
    assert admission.arrive(Ticket("a", eligible=A), "t", 0.0) == []
    others = [Ticket(f"b{at}", eligible=B) for at in range(10)]
    assert [started(admission.arrive(ticket, "t", 0.0)) for ticket in others] == [[(f"b{at}", "b")] for at in range(9)] + [[]]
    assert admission.end(others[0], 1.0) and others[9].placed_on is not None, "whoever waits for b goes on when b gets free"
    admission.arrive(Ticket("vip", eligible=B), "vip", 1.1)
    assert admission.fleet.loads[1].in_flight == 10, "the last place was kept for it"


def test_what_backends_can_answer_changes_under_those_who_wait() -> None:
    admission = new_admission()
    running = Ticket("a0", eligible=A)
    admission.arrive(running, "t", 0.0)
    admission.arrive(Ticket("b0", eligible=B), "t", 0.0)
    waiting = [Ticket(f"a{at}", eligible=A) for at in range(1, 4)]
    for ticket in waiting:
        admission.arrive(ticket, "t", 0.0)
    admission.queue.regroup(lambda ticket: None if ticket.key == "a2" else A)
    assert admission.queue.count == 3 and [t.key for t in sorted(admission.queue, key=lambda t: t.order)] == ["a1", "a2", "a3"]
    assert started(admission.end(running, 1.0)) == [("a1", "a")]
    assert started(admission.end(waiting[0], 1.1)) == [("a2", "a")]
    for ticket in list(admission.queue):
        admission.leave(ticket, 1.2)
    assert admission.queue.count == 0 and not admission.queue.groups


ELIGIBLE = st.one_of(st.none(), st.frozensets(st.sampled_from("abc"), min_size=1))
TENANTS = {"x": TenantTerms(), "y": TenantTerms(weight=2.0), "vip": TenantTerms(), "low": TenantTerms()}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 2), min_size=3, max_size=3),
    st.lists(
        st.one_of(
            st.tuples(st.just("come"), ELIGIBLE, st.sampled_from(sorted(TENANTS)), st.booleans()),
            st.tuples(st.sampled_from(["end", "leave", "fail", "regroup"]), st.integers(0, 20)),
        ),
        max_size=60,
    ),
)
def test_no_backend_with_room_is_left_idle_for_somebody_who_waits_for_another(
    slots: list[int], steps: list[tuple[Any, ...]]
) -> None:
    admission: Admission[Any] = Admission(
        LIMITS, [BackendLoad(name, n) for name, n in zip("abc", slots, strict=True)], lambda: 0.5
    )
    admission.configure(LIMITS, TENANTS)
    running: list[Ticket[Any]] = []
    waiting: list[Ticket[Any]] = []
    names = frozenset("abc")

    def act(actions: list[Action[Any]]) -> None:
        for ticket, load, reason in actions:
            assert reason is None and load is not None
            assert ticket.eligible is None or load.name in ticket.eligible, "it went where it cannot be answered"
            assert load.name not in ticket.tried
            if ticket in waiting:
                waiting.remove(ticket)
            running.append(ticket)

    for number, step in enumerate(steps):
        now = number / 10
        if step[0] == "come":
            ticket = Ticket(number, eligible=step[1], size=1)
            waiting.append(ticket)
            act(admission.arrive(ticket, step[2], now))
        elif step[0] == "end" and running:
            act(admission.end(running.pop(step[1] % len(running)), now))
        elif step[0] == "leave" and waiting:
            act(admission.leave(waiting.pop(step[1] % len(waiting)), now))
        elif step[0] == "fail" and running:
            ticket = running[step[1] % len(running)]
            assert ticket.placed_on is not None
            tried = ticket.tried | {ticket.placed_on.name}
            if admission.fleet.usable(tried, ticket.eligible):
                ticket.tried = tried
                running.remove(ticket)
                waiting.append(ticket)
                act(admission.fell_back(ticket, now))
        elif step[0] == "regroup":
            admission.queue.regroup(lambda t: None if t.key % 3 == 0 else t.eligible)
            act(admission.dispatch(now))
        assert admission.queue.count == len(waiting) == sum(admission.queue.groups.values())
        for load in admission.fleet.loads:
            assert load.in_flight == sum(t.placed_on is load for t in running) <= load.slots
            for ticket in waiting if load.has_room else ():
                allowed = (ticket.eligible or names) - ticket.tried
                assert load.name not in allowed, f"{ticket} waits though {load} has room"
        by_group: dict[object, list[Ticket[Any]]] = {}
        for ticket in admission.queue:
            by_group.setdefault((ticket.tenant, ticket.queue_group), []).append(ticket)
        for group in by_group.values():
            assert group == sorted(group, key=lambda t: t.order)


def test_bands_hold_among_those_who_wait_for_one_backend() -> None:
    admission = new_admission(vip=TenantTerms(band=Band.HIGH), limits=replace(LIMITS, hold_back_share=0.0))
    running = Ticket("a0", eligible=A)
    admission.arrive(running, "t", 0.0)
    admission.arrive(Ticket("b0", eligible=B), "t", 0.0)
    admission.arrive(Ticket("a1", eligible=A), "t", 0.0)
    admission.arrive(Ticket("b1", eligible=B), "vip", 0.0)
    admission.arrive(Ticket("a2", eligible=A), "vip", 0.0)
    assert started(admission.end(running, 1.0)) == [("a2", "a")]
