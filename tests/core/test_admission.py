"""The guarantees of admission, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hangup.core import reasons
from hangup.core.admission import Action, Admission, BackendLoad, Band, HealthEvent, TenantTerms, Ticket
from support.admission import LIMITS, ROOMY, admission, fill, refused, started


def test_a_call_that_leaves_the_queue_frees_its_place_at_once() -> None:
    made = admission(slots=1, limits=replace(LIMITS, queue_depth_max=2))
    tickets = [Ticket(at) for at in range(5)]
    assert started(made.arrive(tickets[0], "a", 0.0)) == [0]
    assert made.arrive(tickets[1], "a", 0.0) == made.arrive(tickets[2], "a", 0.0) == []
    assert refused(made.arrive(tickets[3], "a", 0.0)) == [(3, "queue_full")]
    made.leave(tickets[1], 0.1)
    assert made.arrive(tickets[4], "a", 0.2) == []  # its place was free
    assert started(made.end(tickets[0], 0.3)) == [2]
    assert started(made.end(tickets[2], 0.4)) == [4]
    assert made.end(tickets[4], 0.5) == []
    assert made.queue.count == made.fleet.in_flight == made.queue.bytes == 0


@pytest.mark.parametrize(
    ("shut", "opened"), [(HealthEvent.QUARANTINED, HealthEvent.TAKEN_BACK), (HealthEvent.DRAINED, HealthEvent.UNDRAINED)]
)
def test_nothing_waits_for_what_is_shut(shut: HealthEvent, opened: HealthEvent) -> None:
    """But a backend that is down is a last resort, and one of two that is open is waited for."""
    made = admission(slots=1, backends=2)
    one, two = made.fleet.loads
    assert started(made.arrive(Ticket("runs"), "a", 0.0)) == ["runs"]
    one.health.apply(shut)
    made.fleet.refresh()
    assert refused(made.arrive(Ticket("open"), "a", 0.0)) == []
    two.health.apply(shut)
    made.fleet.refresh()
    assert refused(made.arrive(Ticket("shut"), "a", 0.0)) == [("shut", "backends_unavailable")]
    assert 3.0 < made.retry_after_s("a", reasons.BACKENDS_UNAVAILABLE, 0.0) < 10.0
    two.health.apply(opened)
    two.health.apply(HealthEvent.FAILED_TOO_OFTEN)
    made.fleet.refresh()
    assert refused(made.arrive(Ticket("down"), "a", 0.0)) == []


def test_the_newest_goes_first_once_the_line_stands() -> None:
    made = admission()
    runs, *waiting = fill(made, "a", 5)
    by_key = {ticket.key: ticket for ticket in waiting}
    order = started(made.end(runs, 1.0))  # the oldest has waited a second: in order
    order += started(made.end(by_key[order[-1]], 5.0))  # now it has waited for lifo_after_s: the newest
    order += started(made.end(by_key[order[-1]], 5.1))
    assert order == ["a1", "a4", "a3"]


def serve(made: Admission[Any], running: Ticket[Any], turns: int, tokens: int = 10) -> list[str]:
    """End the call that runs on the one slot, again and again; return the order in which calls ran."""
    order = []
    for turn in range(turns):
        [action] = made.end(running, 0.001 * turn, tokens, 10, completed=True)
        running = action.ticket
        order.append(str(running.key)[0])
    return order


def test_tenants_share_by_tokens_whatever_they_send() -> None:
    made = admission(limits=ROOMY)
    [runs] = fill(made, "x", 1)
    fill(made, "a", 100)
    fill(made, "b", 10)
    order = serve(made, runs, 20)
    assert order.count("b") == 10 and order.count("a") == 10  # ten times the calls win nothing


def test_weights_give_shares() -> None:
    made = admission(limits=ROOMY, b=TenantTerms(weight=3.0))
    [runs] = fill(made, "x", 1)
    fill(made, "a", 100)
    fill(made, "b", 100)
    assert 29 <= serve(made, runs, 40).count("b") <= 31


def test_who_comes_back_has_saved_nothing_up() -> None:
    made = admission(limits=ROOMY)
    [runs] = fill(made, "x", 1)
    fill(made, "a", 60)
    serve(made, runs, 30)
    fill(made, "b", 60, now=0.03)  # was away while a was served thirty times
    assert made.tenant("b").served >= made.tenant("a").served - 1000


def test_long_answers_count_for_more_than_short_ones() -> None:
    made = admission(limits=ROOMY)
    [runs] = fill(made, "x", 1)
    fill(made, "a", 100)
    fill(made, "b", 100)
    order, running = [], runs
    for turn in range(44):
        [action] = made.end(running, 0.001 * turn, 100 if str(running.key)[0] == "a" else 10, 10, completed=True)
        running = action.ticket
        order.append(str(running.key)[0])
    # An answer of a costs 10 + 2·100, one of b 10 + 2·10: seven to one.
    assert 5 <= order.count("b") / order.count("a") <= 9


def test_higher_bands_go_first_and_capacity_is_held_back_for_them() -> None:
    limits = replace(LIMITS, hold_back_share=0.25)
    made = admission(slots=4, limits=limits, vip=TenantTerms(band=Band.HIGH), a=TenantTerms())
    calls = fill(made, "a", 5)
    assert [t.placed_on is not None for t in calls] == [True, True, True, False, False]  # the fourth place is kept
    [vip] = fill(made, "vip", 1)
    assert vip.placed_on is not None
    late = fill(made, "vip", 1)[0]
    assert late.queued
    assert started(made.end(calls[0], 0.1)) == ["vip0"]  # before those of a, who came first


def test_a_lower_band_makes_room_first() -> None:
    made = admission(limits=replace(LIMITS, queue_depth_max=2), batch=TenantTerms(band=Band.LOW))
    fill(made, "a", 1)
    fill(made, "batch", 2)
    actions = made.arrive(Ticket("new"), "a", 0.0)
    assert refused(actions) == [("batch0", "queue_evicted")]


def test_the_longest_line_makes_room_for_others_but_not_for_itself() -> None:
    made = admission(limits=replace(LIMITS, queue_depth_max=3))
    fill(made, "a", 4)
    assert refused(made.arrive(Ticket("more"), "a", 0.0)) == [("more", "queue_full")]
    assert refused(made.arrive(Ticket("other"), "b", 0.0)) == [("a1", "queue_evicted")]


def test_what_counts_as_the_longest_line_goes_by_weight() -> None:
    made = admission(b=TenantTerms(weight=2))
    fill(made, "a", 4)  # one runs
    fill(made, "b", 3)
    assert refused(made.arrive(Ticket("fourth"), "b", 0.0)) == [("a1", "queue_evicted")], "four of weight 2 are less than three"
    assert refused(made.arrive(Ticket("fifth"), "b", 0.0)) == [("fifth", "queue_full")]


def test_a_queue_through_which_many_have_gone_keeps_nothing_of_them() -> None:
    made = admission()
    fill(made, "a", 1)
    for at in range(1000):
        ticket = Ticket(at)
        made.arrive(ticket, f"t{at % 7}", 0.0)
        made.leave(ticket, 0.0)
    assert made.queue.count == 0
    assert all(len(lane.by_length) <= 66 for lane in made.queue._lanes)


def test_a_tenants_quota_of_calls_is_its_own_and_429() -> None:
    made = admission(slots=4, a=TenantTerms(concurrency_max=2))
    first, second = fill(made, "a", 2)
    [action] = made.arrive(Ticket("third"), "a", 0.0)
    assert action.reason is reasons.TENANT_CONCURRENCY and action.reason.status == 429
    assert started(made.arrive(Ticket("other"), "b", 0.0)) == ["other"]
    made.end(first, 0.1)
    assert started(made.arrive(Ticket("third"), "a", 0.2)) == ["third"]
    made.end(second, 0.3)


def test_a_tenants_tokens_per_minute() -> None:
    made = admission(slots=4, a=TenantTerms(tokens_per_minute=600))
    call = Ticket("big", prompt=100, output_max=100)
    assert started(made.arrive(call, "a", 0.0)) == ["big"]
    made.end(call, 1.0, tokens_out=800, tokens_in=100, completed=True)
    [action] = made.arrive(Ticket("next", prompt=1, output_max=1), "a", 1.0)
    assert action.reason is reasons.TENANT_TOKENS
    wait = made.retry_after_s("a", action.reason, 1.0)
    assert 22 <= wait <= 30  # 300 tokens of debt at 10 a second, jittered
    assert started(made.arrive(Ticket("later", prompt=1, output_max=1), "a", 32.0)) == ["later"]


def test_retries_beyond_their_share_are_refused_when_there_is_no_room() -> None:
    made = admission(limits=ROOMY)
    fill(made, "x", 1)
    for at in range(300):
        made.tenant("a").retries.note(at % 2 == 0, 0.1)
    assert refused(made.arrive(Ticket("again", retry=True), "a", 0.0)) == [("again", "retry_budget")]
    assert made.arrive(Ticket("first"), "a", 0.0) == []  # waits
    for _ in range(2000):
        made.tenant("a").retries.note(False, 0.1)
    assert made.arrive(Ticket("again", retry=True), "a", 0.0) == []


def test_no_tenant_pays_for_anothers_retries_or_haste() -> None:
    """One tenant's deadlines of a millisecond, and its retries, are no reason to refuse another tenant's calls."""
    made = admission(limits=replace(ROOMY, queue_s=60.0))
    [running] = fill(made, "x", 1)
    fill(made, "b", 30)
    now = 0.0
    for _ in range(10):  # one a second gets its turn: one that comes now waits for about twenty seconds
        now += 1.0
        [action] = [action for action in made.end(running, now, 10, 10, completed=True) if action.load is not None]
        running = action.ticket
        for at in range(100):
            hasty = Ticket(f"hasty{at}", first_by=now + 0.001, queue_by=now + 60, retry=True)
            assert refused(made.arrive(hasty, "a", now)) or made.end(hasty, now) == []
    assert [made.arrive(Ticket("patient", queue_by=now + 60, retry=again), "b", now) for again in (False, True)] == [[], []]


def test_retries_may_run_while_there_is_room() -> None:
    made = admission(slots=8)
    for _ in range(500):
        made.tenant("a").retries.note(True, 0.1)
    assert started(made.arrive(Ticket("again", retry=True), "a", 0.0)) == ["again"]


def teach(made: Admission[Any], seconds_per_token: float, step_s: float, now: float = 0.0) -> float:
    """Lets calls of several sizes run, so that the estimates know the engine."""
    for at in range(20):
        prompt = 100 * (1 + at % 10)
        ticket = Ticket(f"teach{at}", prompt=prompt, output_max=100)
        made.arrive(ticket, "a", now)
        now += prompt * seconds_per_token
        made.first_token(ticket, now)
        now += 99 * step_s
        made.end(ticket, now, 100, prompt, completed=True)
    return now


def test_what_cannot_reach_its_client_in_time_is_not_started() -> None:
    made = admission(slots=2)
    now = teach(made, seconds_per_token=0.01, step_s=0.05)
    # A prompt of 1000 tokens takes 10 s.
    assert refused(made.arrive(Ticket("soon", prompt=1000, first_by=now + 8), "a", now)) == [("soon", "infeasible")]
    fits = Ticket("fits", prompt=1000, first_by=now + 12)
    assert started(made.arrive(fits, "a", now)) == ["fits"]
    made.end(fits, now)
    # A whole answer of about 100 tokens takes 1 s + 5 s; at half load three of ten chances are not enough.
    whole = Ticket("whole", prompt=100, output_max=100, stream=False, all_by=now + 3)
    assert refused(made.arrive(whole, "a", now)) == [("whole", "infeasible")]
    whole = Ticket("whole", prompt=100, output_max=100, stream=False, all_by=now + 7)
    assert started(made.arrive(whole, "a", now)) == ["whole"]


def test_what_is_not_known_is_no_reason_to_refuse() -> None:
    made = admission(slots=4)
    assert started(made.arrive(Ticket("unknown", prompt=10**6, first_by=0.1), "a", 0.0)) == ["unknown"]
    now = teach(made, seconds_per_token=0.01, step_s=0.05)
    stale = now + 120
    assert started(made.arrive(Ticket("stale", prompt=1000, first_by=stale + 1), "a", stale)) == ["stale"]
    far = Ticket("far", prompt=50_000, first_by=now + 60)  # nothing of that size was ever seen
    assert started(made.arrive(far, "a", now)) == ["far"]


def test_too_late_is_seen_again_at_dispatch() -> None:
    made = admission(slots=1)
    now = teach(made, seconds_per_token=0.01, step_s=0.05)
    [runs] = fill(made, "a", 1, now)
    late = Ticket("late", prompt=500, first_by=now + 6)
    assert made.arrive(late, "a", now) == []
    assert refused(made.end(runs, now + 3)) == [("late", "deadline_near")]
    assert made.fleet.in_flight == 0


def test_a_queue_longer_than_one_may_wait_refuses_at_once() -> None:
    made = admission(limits=ROOMY)
    [running] = fill(made, "x", 1)
    fill(made, "a", 30)
    for turn in range(1, 11):  # one a second leaves
        [action] = made.end(running, float(turn), 10, 10, completed=True)
        running = action.ticket
    [action] = made.arrive(Ticket("new", queue_by=10.0 + 10), "a", 10.0)
    assert action.reason is reasons.QUEUE_TOO_LONG
    assert 10 <= made.retry_after_s("a", action.reason, 10.0) <= 30
    assert made.arrive(Ticket("patient", queue_by=10.0 + 60), "a", 10.0) == []


def test_a_large_prompt_does_not_starve_behind_small_ones() -> None:
    load = BackendLoad("s", 100, kv_tokens=1000)
    made: Admission[Any] = Admission(replace(ROOMY, backfill_s=1.0), [load], lambda: 0.5)
    small = [Ticket(f"small{at}", prompt=100, output_max=0) for at in range(9)]
    for ticket in small:
        assert started(made.arrive(ticket, "a", 0.0))
    large = Ticket("large", prompt=900, output_max=0)
    assert made.arrive(large, "a", 0.0) == []
    passing = Ticket("passing", prompt=100, output_max=0)
    assert started(made.arrive(passing, "a", 0.5)) == ["passing"]  # there is room that the large one cannot use
    assert made.arrive(Ticket("waits", prompt=100, output_max=0), "a", 2.0) == []
    freed = []
    for ticket in [*small, passing]:
        freed += started(made.end(ticket, 2.5))
    assert freed[0] == "large"  # what got free was kept for it
    assert load.kv_used <= 1000


def test_an_engine_alone_takes_what_is_larger_than_its_cache() -> None:
    made: Admission[Any] = Admission(LIMITS, [BackendLoad("s", 4, kv_tokens=100)], lambda: 0.5)
    assert started(made.arrive(Ticket("huge", prompt=5000), "a", 0.0)) == ["huge"]  # it is the engine's to refuse


def hurried(made: Admission[Any], key: str, now: float) -> tuple[Ticket[Any], list[Action[Any]]]:
    """One that wants all of its answer within 6 s."""
    ticket = Ticket(key, prompt=10, output_max=300, all_by=now + 6.0, queue_by=now + 60.0)
    return ticket, made.arrive(ticket, "a", now)


def test_who_has_become_too_late_in_line_makes_room_for_who_has_not() -> None:
    made = admission(limits=replace(LIMITS, queue_depth_max=100))
    now = 0.0
    for at in range(9):  # answers of 200 tokens that take 4 s
        first, _ = hurried(made, f"first{at}", now)
        made.first_token(first, now + 0.02)
        made.end(first, now := now + 4.0, 200, 10, completed=True)
    hurried(made, "runs", now)
    for at in range(2):
        assert hurried(made, f"old{at}", now)[1] == []
    new, actions = hurried(made, "new", now + 1.0)
    assert actions == [] and new.queued, "there is time for the others yet"
    new, actions = hurried(made, "newest", now + 2.5)
    assert refused(actions) == [("old0", "deadline_near"), ("old1", "deadline_near")] and new.queued


def test_a_backend_that_wants_a_pause_gets_one() -> None:
    made = admission(slots=4, backends=2)
    load = made.fleet.loads[0]
    made.pause(load, 1.0)
    assert all(ticket.placed_on is made.fleet.loads[1] for ticket in fill(made, "a", 4))
    [waits] = fill(made, "b", 1)
    assert waits.queued
    assert started(made.resume(load, 1.0)) == ["b0"]


def test_nothing_is_held_back_of_what_is_not_known_to_end() -> None:
    made: Admission[Any] = Admission(ROOMY, [BackendLoad("s")], lambda: 0.5)
    made.configure(replace(ROOMY, hold_back_share=0.1), {"vip": TenantTerms(band=Band.HIGH), "low": TenantTerms(band=Band.LOW)})
    assert all(ticket.placed_on is not None for ticket in fill(made, "low", 100))


def test_the_least_loaded_backend_is_found_whatever_their_number() -> None:
    loads = [BackendLoad(f"s{at}", 4, weight=1 + at % 2) for at in range(50)]
    made: Admission[Any] = Admission(ROOMY, loads, lambda: 0.5)
    for at in range(300):
        in_flight_by_weight = {load: load.in_flight / load.weight for load in loads if load.in_flight < 4}
        actions = made.arrive(Ticket(at), "a", 0.0)
        if actions and actions[0].load is not None:
            assert in_flight_by_weight[actions[0].load] == min(in_flight_by_weight.values())
    assert all(load.in_flight == 4 for load in loads) and made.queue.count == 100


def test_backends_that_are_down_are_taken_only_when_all_are() -> None:
    loads = [BackendLoad("one", 2, failures_max=1), BackendLoad("two", 2, failures_max=1)]
    made: Admission[Any] = Admission(LIMITS, loads, lambda: 0.5)
    loads[0].health.apply(HealthEvent.FAILED)
    made.fleet.refresh()
    assert [t.placed_on.name if t.placed_on else None for t in fill(made, "a", 3)] == ["two", "two", None]
    loads[1].health.apply(HealthEvent.FAILED)
    made.fleet.refresh()
    assert started(made.dispatch(0.0)) == ["a2"]


def test_a_suspected_backend_is_taken_when_the_others_are_full() -> None:
    """Unlike one that is down it may be well, so no capacity is lost."""
    loads = [BackendLoad("one", 2, weight=100), BackendLoad("two", 2)]
    made: Admission[Any] = Admission(LIMITS, loads, lambda: 0.5)
    loads[0].health.apply(HealthEvent.FOUND_LATE)
    made.fleet.refresh()
    assert [t.placed_on.name if t.placed_on else None for t in fill(made, "a", 5)] == ["two", "two", "one", "one", None]


def test_terms_may_change_while_calls_wait() -> None:
    made = admission(limits=ROOMY)
    [runs] = fill(made, "x", 1)
    fill(made, "a", 3)
    fill(made, "b", 3)
    made.configure(ROOMY, {"b": TenantTerms(band=Band.HIGH)})
    assert serve(made, runs, 4) == ["b", "b", "b", "a"]
    assert made.queue.count == 2
