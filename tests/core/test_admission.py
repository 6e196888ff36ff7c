"""The guarantees of admission, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hangup.core import reasons
from hangup.core.admission import Action, Admission, BackendLoad, Band, HealthEvent, TenantTerms, Ticket
from support.admission import LIMITS, ROOMY, fill, new_admission, refused, started


def test_a_call_that_leaves_the_queue_frees_its_place_at_once() -> None:
    admission = new_admission(slots=1, limits=replace(LIMITS, queue_depth_max=2))
    tickets = [Ticket(at) for at in range(5)]
    assert started(admission.arrive(tickets[0], "a", 0.0)) == [0]
    assert admission.arrive(tickets[1], "a", 0.0) == admission.arrive(tickets[2], "a", 0.0) == []
    assert refused(admission.arrive(tickets[3], "a", 0.0)) == [(3, "queue_full")]
    admission.leave(tickets[1], 0.1)
    assert admission.arrive(tickets[4], "a", 0.2) == []  # its place was free
    assert started(admission.end(tickets[0], 0.3)) == [2]
    assert started(admission.end(tickets[2], 0.4)) == [4]
    assert admission.end(tickets[4], 0.5) == []
    assert admission.queue.count == admission.fleet.in_flight == admission.queue.bytes == 0


@pytest.mark.parametrize(
    ("shut", "opened"), [(HealthEvent.QUARANTINED, HealthEvent.TAKEN_BACK), (HealthEvent.DRAINED, HealthEvent.UNDRAINED)]
)
def test_nothing_waits_for_what_is_shut(shut: HealthEvent, opened: HealthEvent) -> None:
    """A backend that is down is still a last resort, and calls wait if one of two backends is open."""
    admission = new_admission(slots=1, backends=2)
    one, two = admission.fleet.loads
    assert started(admission.arrive(Ticket("runs"), "a", 0.0)) == ["runs"]
    one.health.apply(shut)
    admission.fleet.refresh()
    assert refused(admission.arrive(Ticket("open"), "a", 0.0)) == []
    two.health.apply(shut)
    admission.fleet.refresh()
    assert refused(admission.arrive(Ticket("shut"), "a", 0.0)) == [("shut", "backends_unavailable")]
    assert 3.0 < admission.retry_after_s("a", reasons.BACKENDS_UNAVAILABLE, 0.0) < 10.0
    two.health.apply(opened)
    two.health.apply(HealthEvent.FAILED_TOO_OFTEN)
    admission.fleet.refresh()
    assert refused(admission.arrive(Ticket("down"), "a", 0.0)) == []


def test_the_newest_goes_first_once_the_line_stands() -> None:
    admission = new_admission()
    runs, *waiting = fill(admission, "a", 5)
    by_key = {ticket.key: ticket for ticket in waiting}
    order = started(admission.end(runs, 1.0))  # the oldest has waited a second: in order
    order += started(admission.end(by_key[order[-1]], 5.0))  # now it has waited for lifo_after_s: the newest
    order += started(admission.end(by_key[order[-1]], 5.1))
    assert order == ["a1", "a4", "a3"]


def serve(admission: Admission[Any], running: Ticket[Any], turns: int, tokens: int = 10) -> list[str]:
    """End the call on the only slot, again and again; return the order in which the calls ran."""
    order = []
    for turn in range(turns):
        [action] = admission.end(running, 0.001 * turn, tokens, 10, completed=True)
        running = action.ticket
        order.append(str(running.key)[0])
    return order


def test_tenants_share_by_tokens_whatever_they_send() -> None:
    admission = new_admission(limits=ROOMY)
    [runs] = fill(admission, "x", 1)
    fill(admission, "a", 100)
    fill(admission, "b", 10)
    order = serve(admission, runs, 20)
    assert order.count("b") == 10 and order.count("a") == 10  # ten times the calls win nothing


def test_weights_give_shares() -> None:
    admission = new_admission(limits=ROOMY, b=TenantTerms(weight=3.0))
    [runs] = fill(admission, "x", 1)
    fill(admission, "a", 100)
    fill(admission, "b", 100)
    assert 29 <= serve(admission, runs, 40).count("b") <= 31


def test_who_comes_back_has_saved_nothing_up() -> None:
    admission = new_admission(limits=ROOMY)
    [runs] = fill(admission, "x", 1)
    fill(admission, "a", 60)
    serve(admission, runs, 30)
    fill(admission, "b", 60, now=0.03)  # was away while a was served thirty times
    assert admission.tenant("b").served >= admission.tenant("a").served - 1000


def test_long_answers_count_for_more_than_short_ones() -> None:
    admission = new_admission(limits=ROOMY)
    [runs] = fill(admission, "x", 1)
    fill(admission, "a", 100)
    fill(admission, "b", 100)
    order, running = [], runs
    for turn in range(44):
        [action] = admission.end(running, 0.001 * turn, 100 if str(running.key)[0] == "a" else 10, 10, completed=True)
        running = action.ticket
        order.append(str(running.key)[0])
    # An answer of a costs 10 + 2·100, one of b 10 + 2·10: seven to one.
    assert 5 <= order.count("b") / order.count("a") <= 9


def test_higher_bands_go_first_and_capacity_is_held_back_for_them() -> None:
    limits = replace(LIMITS, hold_back_share=0.25)
    admission = new_admission(slots=4, limits=limits, vip=TenantTerms(band=Band.HIGH), a=TenantTerms())
    calls = fill(admission, "a", 5)
    assert [t.placed_on is not None for t in calls] == [True, True, True, False, False]  # the fourth place is kept
    [vip] = fill(admission, "vip", 1)
    assert vip.placed_on is not None
    late = fill(admission, "vip", 1)[0]
    assert late.queued
    assert started(admission.end(calls[0], 0.1)) == ["vip0"]  # before those of a, who came first


def test_a_lower_band_makes_room_first() -> None:
    admission = new_admission(limits=replace(LIMITS, queue_depth_max=2), batch=TenantTerms(band=Band.LOW))
    fill(admission, "a", 1)
    fill(admission, "batch", 2)
    actions = admission.arrive(Ticket("new"), "a", 0.0)
    assert refused(actions) == [("batch0", "queue_evicted")]


def test_the_longest_line_makes_room_for_others_but_not_for_itself() -> None:
    admission = new_admission(limits=replace(LIMITS, queue_depth_max=3))
    fill(admission, "a", 4)
    assert refused(admission.arrive(Ticket("more"), "a", 0.0)) == [("more", "queue_full")]
    assert refused(admission.arrive(Ticket("other"), "b", 0.0)) == [("a1", "queue_evicted")]


def test_what_counts_as_the_longest_line_goes_by_weight() -> None:
    admission = new_admission(b=TenantTerms(weight=2))
    fill(admission, "a", 4)  # one runs
    fill(admission, "b", 3)
    assert refused(admission.arrive(Ticket("fourth"), "b", 0.0)) == [("a1", "queue_evicted")], (
        "four of weight 2 are less than three"
    )
    assert refused(admission.arrive(Ticket("fifth"), "b", 0.0)) == [("fifth", "queue_full")]


def test_a_queue_through_which_many_have_gone_keeps_nothing_of_them() -> None:
    admission = new_admission()
    fill(admission, "a", 1)
    for at in range(1000):
        ticket = Ticket(at)
        admission.arrive(ticket, f"t{at % 7}", 0.0)
        admission.leave(ticket, 0.0)
    assert admission.queue.count == 0
    assert all(len(lane.by_length) <= 66 for lane in admission.queue._lanes)


def test_a_tenants_quota_of_calls_is_its_own_and_429() -> None:
    admission = new_admission(slots=4, a=TenantTerms(concurrency_max=2))
    first, second = fill(admission, "a", 2)
    [action] = admission.arrive(Ticket("third"), "a", 0.0)
    assert action.reason is reasons.TENANT_CONCURRENCY and action.reason.status == 429
    assert started(admission.arrive(Ticket("other"), "b", 0.0)) == ["other"]
    admission.end(first, 0.1)
    assert started(admission.arrive(Ticket("third"), "a", 0.2)) == ["third"]
    admission.end(second, 0.3)


def test_a_tenants_tokens_per_minute() -> None:
    admission = new_admission(slots=4, a=TenantTerms(tokens_per_minute=600))
    call = Ticket("big", prompt=100, output_max=100)
    assert started(admission.arrive(call, "a", 0.0)) == ["big"]
    admission.end(call, 1.0, tokens_out=800, tokens_in=100, completed=True)
    [action] = admission.arrive(Ticket("next", prompt=1, output_max=1), "a", 1.0)
    assert action.reason is reasons.TENANT_TOKENS
    wait = admission.retry_after_s("a", action.reason, 1.0)
    assert 22 <= wait <= 30  # 300 tokens of debt at 10 a second, jittered
    assert started(admission.arrive(Ticket("later", prompt=1, output_max=1), "a", 32.0)) == ["later"]


def test_retries_beyond_their_share_are_refused_when_there_is_no_room() -> None:
    admission = new_admission(limits=ROOMY)
    fill(admission, "x", 1)
    for at in range(300):
        admission.tenant("a").retries.note(at % 2 == 0, 0.1)
    assert refused(admission.arrive(Ticket("again", retry=True), "a", 0.0)) == [("again", "retry_budget")]
    assert admission.arrive(Ticket("first"), "a", 0.0) == []  # waits
    for _ in range(2000):
        admission.tenant("a").retries.note(False, 0.1)
    assert admission.arrive(Ticket("again", retry=True), "a", 0.0) == []


def test_no_tenant_pays_for_anothers_retries_or_haste() -> None:
    """One tenant's millisecond deadlines and retries must not make admission refuse another tenant's calls."""
    admission = new_admission(limits=replace(ROOMY, queue_s=60.0))
    [running] = fill(admission, "x", 1)
    fill(admission, "b", 30)
    now = 0.0
    for _ in range(10):  # one a second gets its turn: one that comes now waits for about twenty seconds
        now += 1.0
        [action] = [action for action in admission.end(running, now, 10, 10, completed=True) if action.load is not None]
        running = action.ticket
        for at in range(100):
            hasty = Ticket(f"hasty{at}", first_by=now + 0.001, queue_by=now + 60, retry=True)
            assert refused(admission.arrive(hasty, "a", now)) or admission.end(hasty, now) == []
    assert [admission.arrive(Ticket("patient", queue_by=now + 60, retry=again), "b", now) for again in (False, True)] == [
        [],
        [],
    ]


def test_retries_may_run_while_there_is_room() -> None:
    admission = new_admission(slots=8)
    for _ in range(500):
        admission.tenant("a").retries.note(True, 0.1)
    assert started(admission.arrive(Ticket("again", retry=True), "a", 0.0)) == ["again"]


def teach(admission: Admission[Any], seconds_per_token: float, step_s: float, now: float = 0.0) -> float:
    """Run calls of several sizes, so that the estimates know the engine."""
    for at in range(20):
        prompt = 100 * (1 + at % 10)
        ticket = Ticket(f"teach{at}", prompt=prompt, output_max=100)
        admission.arrive(ticket, "a", now)
        now += prompt * seconds_per_token
        admission.first_token(ticket, now)
        now += 99 * step_s
        admission.end(ticket, now, 100, prompt, completed=True)
    return now


def test_what_cannot_reach_its_client_in_time_is_not_started() -> None:
    admission = new_admission(slots=2)
    now = teach(admission, seconds_per_token=0.01, step_s=0.05)
    # A prompt of 1000 tokens takes 10 s.
    assert refused(admission.arrive(Ticket("soon", prompt=1000, first_by=now + 8), "a", now)) == [("soon", "infeasible")]
    fits = Ticket("fits", prompt=1000, first_by=now + 12)
    assert started(admission.arrive(fits, "a", now)) == ["fits"]
    admission.end(fits, now)
    # A whole answer of about 100 tokens takes 1 s + 5 s; at half load three of ten chances are not enough.
    whole = Ticket("whole", prompt=100, output_max=100, stream=False, all_by=now + 3)
    assert refused(admission.arrive(whole, "a", now)) == [("whole", "infeasible")]
    whole = Ticket("whole", prompt=100, output_max=100, stream=False, all_by=now + 7)
    assert started(admission.arrive(whole, "a", now)) == ["whole"]


def test_what_is_not_known_is_no_reason_to_refuse() -> None:
    admission = new_admission(slots=4)
    assert started(admission.arrive(Ticket("unknown", prompt=10**6, first_by=0.1), "a", 0.0)) == ["unknown"]
    now = teach(admission, seconds_per_token=0.01, step_s=0.05)
    stale = now + 120
    assert started(admission.arrive(Ticket("stale", prompt=1000, first_by=stale + 1), "a", stale)) == ["stale"]
    far = Ticket("far", prompt=50_000, first_by=now + 60)  # nothing of that size was ever seen
    assert started(admission.arrive(far, "a", now)) == ["far"]


def test_too_late_is_seen_again_at_dispatch() -> None:
    admission = new_admission(slots=1)
    now = teach(admission, seconds_per_token=0.01, step_s=0.05)
    [runs] = fill(admission, "a", 1, now)
    late = Ticket("late", prompt=500, first_by=now + 6)
    assert admission.arrive(late, "a", now) == []
    assert refused(admission.end(runs, now + 3)) == [("late", "deadline_near")]
    assert admission.fleet.in_flight == 0


def test_a_queue_longer_than_one_may_wait_refuses_at_once() -> None:
    admission = new_admission(limits=ROOMY)
    [running] = fill(admission, "x", 1)
    fill(admission, "a", 30)
    for turn in range(1, 11):  # one a second leaves
        [action] = admission.end(running, float(turn), 10, 10, completed=True)
        running = action.ticket
    [action] = admission.arrive(Ticket("new", queue_by=10.0 + 10), "a", 10.0)
    assert action.reason is reasons.QUEUE_TOO_LONG
    assert 10 <= admission.retry_after_s("a", action.reason, 10.0) <= 30
    assert admission.arrive(Ticket("patient", queue_by=10.0 + 60), "a", 10.0) == []


def test_a_large_prompt_does_not_starve_behind_small_ones() -> None:
    load = BackendLoad("s", 100, kv_tokens=1000)
    admission: Admission[Any] = Admission(replace(ROOMY, backfill_s=1.0), [load], lambda: 0.5)
    small = [Ticket(f"small{at}", prompt=100, output_max=0) for at in range(9)]
    for ticket in small:
        assert started(admission.arrive(ticket, "a", 0.0))
    large = Ticket("large", prompt=900, output_max=0)
    assert admission.arrive(large, "a", 0.0) == []
    passing = Ticket("passing", prompt=100, output_max=0)
    assert started(admission.arrive(passing, "a", 0.5)) == ["passing"]  # there is room that the large one cannot use
    assert admission.arrive(Ticket("waits", prompt=100, output_max=0), "a", 2.0) == []
    freed = []
    for ticket in [*small, passing]:
        freed += started(admission.end(ticket, 2.5))
    assert freed[0] == "large"  # what got free was kept for it
    assert load.kv_used <= 1000


def test_an_engine_alone_takes_what_is_larger_than_its_cache() -> None:
    admission: Admission[Any] = Admission(LIMITS, [BackendLoad("s", 4, kv_tokens=100)], lambda: 0.5)
    assert started(admission.arrive(Ticket("huge", prompt=5000), "a", 0.0)) == ["huge"]  # it is the engine's to refuse


def hurried(admission: Admission[Any], key: str, now: float) -> tuple[Ticket[Any], list[Action[Any]]]:
    """Return a call that wants its whole answer within 6 s."""
    ticket = Ticket(key, prompt=10, output_max=300, all_by=now + 6.0, queue_by=now + 60.0)
    return ticket, admission.arrive(ticket, "a", now)


def test_who_has_become_too_late_in_line_makes_room_for_who_has_not() -> None:
    admission = new_admission(limits=replace(LIMITS, queue_depth_max=100))
    now = 0.0
    for at in range(9):  # answers of 200 tokens that take 4 s
        first, _ = hurried(admission, f"first{at}", now)
        admission.first_token(first, now + 0.02)
        admission.end(first, now := now + 4.0, 200, 10, completed=True)
    hurried(admission, "runs", now)
    for at in range(2):
        assert hurried(admission, f"old{at}", now)[1] == []
    new, actions = hurried(admission, "new", now + 1.0)
    assert actions == [] and new.queued, "there is time for the others yet"
    new, actions = hurried(admission, "newest", now + 2.5)
    assert refused(actions) == [("old0", "deadline_near"), ("old1", "deadline_near")] and new.queued


def test_a_backend_that_wants_a_pause_gets_one() -> None:
    admission = new_admission(slots=4, backends=2)
    load = admission.fleet.loads[0]
    admission.pause(load, 1.0)
    assert all(ticket.placed_on is admission.fleet.loads[1] for ticket in fill(admission, "a", 4))
    [waits] = fill(admission, "b", 1)
    assert waits.queued
    assert started(admission.resume(load, 1.0)) == ["b0"]


def test_nothing_is_held_back_of_what_is_not_known_to_end() -> None:
    admission: Admission[Any] = Admission(ROOMY, [BackendLoad("s")], lambda: 0.5)
    admission.configure(
        replace(ROOMY, hold_back_share=0.1), {"vip": TenantTerms(band=Band.HIGH), "low": TenantTerms(band=Band.LOW)}
    )
    assert all(ticket.placed_on is not None for ticket in fill(admission, "low", 100))


def test_the_least_loaded_backend_is_found_whatever_their_number() -> None:
    loads = [BackendLoad(f"s{at}", 4, weight=1 + at % 2) for at in range(50)]
    admission: Admission[Any] = Admission(ROOMY, loads, lambda: 0.5)
    for at in range(300):
        in_flight_by_weight = {load: load.in_flight / load.weight for load in loads if load.in_flight < 4}
        actions = admission.arrive(Ticket(at), "a", 0.0)
        if actions and actions[0].load is not None:
            assert in_flight_by_weight[actions[0].load] == min(in_flight_by_weight.values())
    assert all(load.in_flight == 4 for load in loads) and admission.queue.count == 100


def test_backends_that_are_down_are_taken_only_when_all_are() -> None:
    loads = [BackendLoad("one", 2, failures_max=1), BackendLoad("two", 2, failures_max=1)]
    admission: Admission[Any] = Admission(LIMITS, loads, lambda: 0.5)
    loads[0].health.apply(HealthEvent.FAILED)
    admission.fleet.refresh()
    assert [t.placed_on.name if t.placed_on else None for t in fill(admission, "a", 3)] == ["two", "two", None]
    loads[1].health.apply(HealthEvent.FAILED)
    admission.fleet.refresh()
    assert started(admission.dispatch(0.0)) == ["a2"]


def test_a_suspected_backend_is_taken_when_the_others_are_full() -> None:
    """It may be healthy, unlike a backend that is down; so no capacity is lost."""
    loads = [BackendLoad("one", 2, weight=100), BackendLoad("two", 2)]
    admission: Admission[Any] = Admission(LIMITS, loads, lambda: 0.5)
    loads[0].health.apply(HealthEvent.FOUND_LATE)
    admission.fleet.refresh()
    assert [t.placed_on.name if t.placed_on else None for t in fill(admission, "a", 5)] == ["two", "two", "one", "one", None]


def test_terms_may_change_while_calls_wait() -> None:
    admission = new_admission(limits=ROOMY)
    [runs] = fill(admission, "x", 1)
    fill(admission, "a", 3)
    fill(admission, "b", 3)
    admission.configure(ROOMY, {"b": TenantTerms(band=Band.HIGH)})
    assert serve(admission, runs, 4) == ["b", "b", "b", "a"]
    assert admission.queue.count == 2


def test_a_tenant_that_was_raised_makes_no_room_for_its_old_band() -> None:
    admission = new_admission(limits=replace(ROOMY, queue_depth_max=4))
    fill(admission, "x", 1)
    raised = fill(admission, "a", 3)
    [other] = fill(admission, "b", 1)
    admission.configure(admission.limits, {"a": TenantTerms(band=Band.HIGH)})
    fill(admission, "c", 1)
    assert all(ticket.queued for ticket in raised)
    assert other.queued
