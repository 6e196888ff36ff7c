"""Which capacity jobs may use, and when they yield, rule by rule."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hangup.config import LimitSettings
from hangup.core import reasons
from hangup.core.admission import Action, Admission, BackendLoad, Band, HealthEvent, TenantTerms, Ticket
from hangup.core.admission.estimates import Peak

LIMITS = LimitSettings(queue_depth_max=6, queue_s=1e6, jobs_calm_s=5.0, hold_back_share=0.1, jobs_hold_back_share=0.25)


def new_admission(
    slots: int = 4, backends: int = 1, limits: LimitSettings = LIMITS, kv_tokens: int = 0, **terms: TenantTerms
) -> Admission[Any]:
    admission: Admission[Any] = Admission(
        limits, [BackendLoad(f"s{at}", slots, kv_tokens=kv_tokens) for at in range(backends)], lambda: 0.5
    )
    admission.configure(limits, terms)
    return admission


def started(actions: list[Action[Any]]) -> list[object]:
    return [action.ticket.key for action in actions if action.load is not None]


def ended(actions: list[Action[Any]]) -> list[tuple[object, str]]:
    return [(action.ticket.key, action.reason.code) for action in actions if action.reason is not None]


def put_in_line(admission: Admission[Any], count: int, name: str = "a", now: float = 0.0) -> list[Ticket[Any]]:
    """Queue items of jobs. Each gets its first token as soon as it starts, so that the next may start."""
    items = [Ticket(f"{name}-job{at}", prompt=10, output_max=10, job=True) for at in range(count)]
    for item in items:
        actions = admission.arrive(item, name, now)
        while actions:
            actions = [more for action in actions for more in admission.first_token(action.ticket, now)]
    return items


def call(admission: Admission[Any], key: object, now: float = 0.0, name: str = "a") -> tuple[Ticket[Any], list[Action[Any]]]:
    ticket = Ticket(key, prompt=10, output_max=10)
    return ticket, admission.arrive(ticket, name, now)


def in_flight(tickets: list[Ticket[Any]]) -> int:
    return sum(ticket.placed_on is not None for ticket in tickets)


# What is idle


@pytest.mark.parametrize(("slots", "read"), [(1, 1), (8, 1), (16, 2), (64, 8)])
def test_alone_a_few_are_read_at_a_time_and_all_of_those_make_way(slots: int, read: int) -> None:
    admission = new_admission(slots)
    items = [Ticket(f"job{at}", prompt=10, output_max=10, job=True) for at in range(slots)]
    for item in items:
        admission.arrive(item, "a", 0.0)
    assert in_flight(items) == read, "one for eight slots"
    _, actions = call(admission, "live")
    if slots > 1:
        assert started(actions) == ["live"]
    assert sorted(ended(actions)) == sorted((item.key, "preempted") for item in items[:read])
    for item in items[:read]:
        admission.end(item, 0.0)
    assert in_flight(items) == 0, "beside a live call that is read none is"


@pytest.mark.parametrize(("slots", "jobs"), [(1, 1), (2, 1), (4, 3), (20, 18)])
def test_without_live_calls_jobs_leave_a_share_and_one_place_at_least(slots: int, jobs: int) -> None:
    admission = new_admission(slots)
    items = put_in_line(admission, slots + 2)
    assert in_flight(items) == admission.jobs.in_flight == jobs
    assert admission.jobs_waiting("a") == slots + 2 - jobs and admission.jobs_waiting("b") == 0


def test_while_live_calls_come_jobs_leave_more() -> None:
    admission = new_admission(20)
    admission.first_token(call(admission, "live")[0], 0.0)
    assert in_flight(put_in_line(admission, 20)) == 20 - 1 - 5


def test_jobs_leave_room_for_as_many_live_calls_as_there_were_of_late() -> None:
    admission = new_admission(20)
    live = [call(admission, at)[0] for at in range(12)]
    admission.first_token(live[0], 0.5)
    for ticket in live[1:]:
        admission.end(ticket, 1.0)
    items = put_in_line(admission, 20, now=1.0)
    assert admission.live == 1 and in_flight(items) == 20 - 12
    admission.dispatch(7.0)
    assert in_flight(items) == 20 - 12  # up to twice the time
    actions = admission.dispatch(12.0)
    while actions:
        actions = admission.first_token(actions[0].ticket, 12.0)
    assert in_flight(items) == 20 - 1 - 5


def test_an_engine_with_one_slot_runs_a_job_when_no_live_call_was_there_for_a_moment() -> None:
    admission = new_admission(1)
    live, _ = call(admission, "live")
    [item] = put_in_line(admission, 1)
    assert admission.end(live, 1.0) == [] and admission.dispatch(5.9) == [] and not admission.dispatch(7.0)
    assert started(admission.dispatch(12.0)) == [item.key]


def test_a_job_starts_only_where_nobody_waits_for_a_first_token() -> None:
    admission = new_admission(8, backends=2)
    live, _ = call(admission, "live")
    items = [Ticket(f"job{at}", prompt=10, job=True) for at in range(3)]
    assert started(admission.arrive(items[0], "a", 0.0)) == ["job0"] and items[0].placed_on is not live.placed_on
    assert admission.arrive(items[1], "a", 0.0) == admission.arrive(items[2], "a", 0.0) == []
    assert started(admission.first_token(live, 0.1)) == ["job1"] and items[1].placed_on is live.placed_on
    assert started(admission.first_token(items[0], 0.2)) == ["job2"]


def test_backends_that_are_down_are_no_room() -> None:
    admission = new_admission(4, backends=2)
    down = admission.fleet.loads[0]
    down.health.apply(HealthEvent.FAILED_TOO_OFTEN)
    admission.fleet.refresh()
    items = put_in_line(admission, 8)
    assert in_flight(items) == 3 and not down.in_flight
    down.health.apply(HealthEvent.ANSWERED)
    admission.fleet.refresh()
    assert started(admission.dispatch(1.0)) == ["a-job3", "a-job4"]


def test_jobs_are_not_seen_in_the_first_line() -> None:
    admission = new_admission(1, a=TenantTerms(concurrency_max=2))
    items = put_in_line(admission, 50)  # more than the queue holds, and than the tenant may have
    assert admission.queue.count == admission.queue.bytes == 0 and admission.jobs.count == 49
    assert admission.tenant("a").in_flight == admission.tenant("a").waiting == 0
    _, actions = call(admission, "live")
    assert ended(actions) == [("a-job0", "preempted")]
    admission.leave(items[7], 1.0)
    assert admission.jobs_waiting("a") == 48 and admission.queue.count == 1


def test_jobs_share_among_tenants_by_weight_and_in_order() -> None:
    admission = new_admission(2, b=TenantTerms(weight=3.0))
    [running] = put_in_line(admission, 1, "x")
    put_in_line(admission, 40, "a")
    put_in_line(admission, 40, "b")
    order: list[str] = []
    for turn in range(40):
        [action] = admission.end(running, 100.0 + turn, 10, 10, completed=True)
        running = action.ticket
        admission.first_token(running, 100.0 + turn)
        order.append(str(running.key))
    assert 29 <= sum(key[0] == "b" for key in order) <= 31
    assert [key for key in order if key[0] == "b"][:3] == ["b-job0", "b-job1", "b-job2"]  # they never stand for too long


def test_the_allowance_is_one_for_both() -> None:
    admission = new_admission(4, a=TenantTerms(tokens_per_minute=100))
    big = Ticket("big", prompt=500, job=True)
    admission.arrive(big, "a", 0.0)
    assert ended(call(admission, "live")[1]) == [("live", "tokens_per_minute")]
    assert ended(admission.arrive(Ticket("next", job=True), "a", 0.0)) == [("next", "tokens_per_minute")]
    admission.configure(LIMITS, {"a": TenantTerms(tokens_per_minute=200)})
    assert admission.jobs.tenants["a"].allowance is admission.tenant("a").allowance


def test_one_in_line_is_told_when_its_turn_comes_that_the_allowance_is_spent() -> None:
    admission = new_admission(1, a=TenantTerms(tokens_per_minute=100))
    [other] = put_in_line(admission, 1, "b")
    first, second = Ticket("first", prompt=500, job=True), Ticket("second", prompt=500, job=True)
    assert admission.arrive(first, "a", 0.0) == admission.arrive(second, "a", 0.0) == []
    assert started(admission.end(other, 0.5)) == ["first"]
    assert ended(admission.end(first, 1.0, 10, 500)) == [("second", "tokens_per_minute")]
    assert admission.jobs.count == 0


def test_without_backends_a_job_is_refused() -> None:
    assert ended(new_admission(backends=0).arrive(Ticket("job", job=True), "a", 0.0)) == [("job", "no_backend")]


def test_one_that_fits_no_cache_steps_aside_and_is_not_forgotten() -> None:
    admission = new_admission(8, kv_tokens=1000)
    small, large = [Ticket(at, prompt=400, job=True) for at in range(2)], Ticket("large", prompt=900, job=True)
    medium = Ticket("medium", prompt=100, job=True)
    admission.arrive(small[0], "a", 0.0)
    admission.first_token(small[0], 0.0)
    assert started(admission.arrive(small[1], "a", 0.1)) == [1]
    admission.first_token(small[1], 0.2)
    assert admission.arrive(large, "a", 0.3) == [] and admission.jobs.aside is large  # counted as half of the cache, at most
    assert started(admission.arrive(medium, "a", 0.4)) == ["medium"]
    admission.first_token(medium, 0.5)
    assert admission.end(medium, 2.0, 1, 100) == [] and started(admission.end(small[1], 2.1, 1, 400)) == ["large"]


# Making way


def test_live_calls_go_before_jobs() -> None:
    admission = new_admission(2, vip=TenantTerms(band=Band.HIGH))
    running, *_ = put_in_line(admission, 3, "vip")
    one, _ = call(admission, "one")
    admission.first_token(one, 0.0)
    _, actions = call(admission, "two")
    assert ended(actions) == [("vip-job0", "preempted")]
    assert started(admission.end(running, 0.1)) == ["two"]  # and not the next item, however high its tenant stands


def test_the_one_that_started_last_makes_way_and_once_for_each_who_waits() -> None:
    admission = new_admission(4)
    items = put_in_line(admission, 3)
    call(admission, 0)
    assert ended(call(admission, 1)[1]) == [("a-job2", "preempted")]
    assert admission.dispatch(0.1) == []  # it has been told
    assert ended(call(admission, 2)[1]) == [("a-job1", "preempted")]
    assert admission.jobs.in_flight == 3
    assert started(admission.end(items[2], 0.2)) == [1] and started(admission.end(items[1], 0.2)) == [2]
    assert admission.jobs.in_flight == 1 and admission.queue.count == 0


def test_a_place_that_is_held_is_waited_for() -> None:
    admission = new_admission(4)
    items = put_in_line(admission, 3)
    call(admission, 0)
    call(admission, 1)
    load = items[2].placed_on
    assert load is not None
    assert admission.end(items[2], 0.2, hold=True) == []  # its engine may still be at work: nobody else need go for that
    assert started(admission.release_held(load, items[2].kv, 0.3)) == [1]


def test_a_job_whose_prompt_is_being_read_makes_way_for_a_live_call_on_its_backend() -> None:
    admission = new_admission(8)
    item = Ticket("job", prompt=1000, job=True)
    admission.arrive(item, "a", 0.0)
    live, actions = call(admission, "live")
    assert started(actions) == ["live"] and ended(actions) == [("job", "preempted")]
    admission.end(item, 0.1)
    admission.first_token(live, 0.1)
    [running] = put_in_line(admission, 1, now=0.2)
    _, actions = call(admission, "later", 0.3)
    assert ended(actions) == [] and running.placed_on is not None  # it has its first token: nobody waits for it


def test_no_job_makes_way_where_the_live_call_cannot_go() -> None:
    admission = new_admission(1, backends=2)
    put_in_line(admission, 1)
    live, _ = call(admission, "live")
    assert live.placed_on is not None
    live.tried |= {load.name for load in admission.fleet.loads if load.jobs}
    live.tried |= {live.placed_on.name}
    assert admission.fell_back(live, 0.1) == [] and live.queued
    live.tried = frozenset()
    job_load = next(load for load in admission.fleet.loads if load.jobs)
    job_load.health.apply(HealthEvent.QUARANTINED)
    admission.fleet.refresh()
    assert started(admission.dispatch(0.2)) == ["live"]
    _, actions = call(admission, "another", 0.3)
    assert actions == []
    job_load.health.apply(HealthEvent.TAKEN_BACK)
    admission.fleet.refresh()
    assert ended(admission.dispatch(0.4)) == [("a-job0", "preempted")]


def test_an_item_that_made_way_often_runs_to_its_end_one_on_each_backend() -> None:
    admission = new_admission(3, limits=replace(LIMITS, jobs_hold_back_share=0.0, hold_back_share=0.0))
    items = [Ticket(f"old{at}", prompt=10, output_max=10, job=True, yields=3) for at in range(2)]
    for item in items:
        admission.arrive(item, "a", 0.0)
        admission.first_token(item, 0.0)
    assert all(item.placed_on is not None for item in items)
    preempted = [pair for at in range(4) for pair in ended(call(admission, at, 0.1)[1])]
    assert preempted == [("old1", "preempted")]  # the other one stays, whoever comes


def test_an_item_that_fell_back_goes_first_in_its_own_line() -> None:
    admission = new_admission(1, backends=2)
    items = put_in_line(admission, 3)
    live, _ = call(admission, "live")
    admission.first_token(live, 0.0)
    load = items[0].placed_on
    assert load is not None
    items[0].tried |= {load.name}
    assert admission.fell_back(items[0], 0.1) == [] and items[0].queued
    assert (admission.queue.count, admission.jobs_waiting("a"), admission.jobs.in_flight, admission.tenant("a").waiting) == (
        0,
        3,
        0,
        0,
    )
    assert started(admission.end(live, 0.2)) == ["a-job0"] and items[0].placed_on is not load


def test_yielded_is_a_reason_of_its_own() -> None:
    assert reasons.PREEMPTED.status == 503 and reasons.PREEMPTED.outcome is reasons.Outcome.KILLED


# Learned slots


def test_alone_jobs_find_out_how_much_an_engine_runs() -> None:
    """This engine runs 5: the sixth call gets its first token only when another ends."""
    admission = new_admission(slots=0)
    load = admission.fleet.loads[0]
    runs: list[Ticket[Any]] = []
    now = 0.0
    waits: list[Ticket[Any]] = []

    def carry_out(actions: list[Action[Any]]) -> None:
        for ticket, where, _ in actions:
            assert where is load
            waits.append(ticket)

    most = 0
    for at in range(400):
        now += 0.1
        carry_out(admission.arrive(Ticket(at, prompt=10, job=True), "a", now))
        while waits and len(runs) < 5:
            runs.append(waits.pop())
            carry_out(admission.first_token(runs[-1], now))
        if at % 5 == 4:
            carry_out(admission.end(runs.pop(0), now, 20, 10, completed=True))
        assert len(waits) <= 1
        most = max(most, load.in_flight)
    assert load.limiter.most_running == 5 and most == 6


def test_with_live_calls_jobs_keep_within_what_an_engine_was_seen_to_run() -> None:
    admission = new_admission(slots=0)
    live = []
    for at in range(8):
        ticket, actions = call(admission, at)
        assert started(actions) == [at]
        admission.first_token(ticket, 0.1 * at)
        live.append(ticket)
    for ticket in live[1:]:
        admission.end(ticket, 1.0)
    assert in_flight(put_in_line(admission, 8, now=12.0)) == 8 - 1 - 2


def test_a_live_call_beyond_what_was_seen_sends_a_job_away() -> None:
    admission = new_admission(slots=0)
    items = put_in_line(admission, 6)
    assert in_flight(items) == 6 == admission.fleet.loads[0].limiter.most_running
    _, actions = call(admission, "live", 1.0)
    assert started(actions) == ["live"] and ended(actions) == [("a-job5", "preempted")]


def test_jobs_teach_nothing_about_first_tokens() -> None:
    admission = new_admission(slots=0)
    load = admission.fleet.loads[0]
    item = Ticket("job", prompt=10, job=True)
    admission.arrive(item, "a", 0.0)
    admission.first_token(item, 60.0)
    assert load.estimates.first_token.seen == 0 and load.limiter._usual[True].get(10) is None


def test_a_running_job_is_not_ended_for_one_who_waits_for_prompts_to_be_read() -> None:
    admission = new_admission(slots=0)
    for at in range(12):
        ticket, _ = call(admission, at)
        admission.first_token(ticket, 0.0)
        admission.end(ticket, 0.0)
    live = [call(admission, f"early{at}")[0] for at in range(3)]
    for ticket in live:
        admission.first_token(ticket, 1.0)
    for ticket in live[1:]:
        admission.end(ticket, 1.0)
    put_in_line(admission, 1, now=12.0)
    admission.fleet.loads[0].limiter.most_running = 20
    admission.engine_reported(admission.fleet.loads[0], 9, 12.5)
    burst = [call(admission, f"burst{at}", 13.0) for at in range(6)]
    assert any(ticket.queued for ticket, _ in burst)
    assert [pair for _, actions in burst for pair in ended(actions)] == []


class WholeAnswers:
    """An engine that computes any number of embeddings in 0.05 s each, and sends nothing before an answer is complete."""

    def __init__(self) -> None:
        self.made = new_admission(slots=0)
        self.now = 0.0
        self.running: list[tuple[float, Ticket[Any]]] = []
        self.done: list[Any] = []

    def come(self, key: object, *, job: bool) -> None:
        self._take(self.made.arrive(Ticket(key, prompt=10, stream=False, whole=True, job=job), "a", self.now))

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.01)):
            self.now += 0.01
            for ends_at, ticket in list(self.running):
                if ends_at <= self.now and (ends_at, ticket) in self.running:
                    self.running.remove((ends_at, ticket))
                    self._take(self.made.first_token(ticket, self.now))
                    self.done.append(ticket.key)
                    self._take(self.made.end(ticket, self.now, completed=True))
            self._take(self.made.dispatch(self.now))

    def _take(self, actions: list[Action[Any]]) -> None:
        for ticket, load, _ in actions:
            if load is not None:
                self.running.append((self.now + 0.05, ticket))
            else:  # told to make way: it comes again
                self.running = [pair for pair in self.running if pair[1] is not ticket]
                self.made.end(ticket, self.now)
                self.come(ticket.key, job=True)


@pytest.mark.parametrize("live", [False, True])
def test_a_batch_of_embeddings_runs_alone_and_beside_live_ones(live: bool) -> None:
    """One at a time would mean 50 in 2.5 s; one per try meant 7 in 40 s, and none beside live calls."""
    engine = WholeAnswers()
    if live:
        engine.come("live-first", job=False)
    for at in range(50):
        engine.come(at, job=True)
    for second in range(10):
        if live and second % 2 == 0:
            engine.come(f"live{second}", job=False)
        engine.pass_time(1.0)
    assert {key for key in engine.done if isinstance(key, int)} == set(range(50))
    assert sum(isinstance(key, str) for key in engine.done) == (6 if live else 0)


def test_live_calls_that_never_stop_do_not_keep_all_jobs_out() -> None:
    """Admission has only ever seen one live call at a time; it learns beside a live call that the engine runs two."""
    admission = new_admission(slots=0)
    live, _ = call(admission, "live0")
    items = put_in_line(admission, 2)
    assert in_flight(items) == 0, "the prompt of a live call is being read"
    assert started(admission.first_token(live, 0.5)) == ["a-job0"]
    admission.first_token(items[0], 0.6)
    assert admission.fleet.loads[0].limiter.most_running == 2
    admission.end(live, 1.0)
    _, actions = call(admission, "live1", 1.0)
    assert started(actions) == ["live1"] and ended(actions) == [], "both run, as was seen"
    assert in_flight(items) == 1, "one at a time"


def test_an_engine_that_was_seen_to_run_one_call_keeps_that_place_for_live_calls() -> None:
    admission = new_admission(slots=0)
    live, _ = call(admission, "live")
    admission.first_token(live, 0.5)
    admission.end(live, 1.0)
    assert in_flight(put_in_line(admission, 1, now=2.0)) == 0
    assert started(admission.dispatch(20.0)) == ["a-job0"], "none has come for a while"


def test_no_job_beside_live_calls_where_the_engine_is_known_to_queue() -> None:
    admission = new_admission(slots=0)
    live = [call(admission, at)[0] for at in range(3)]
    for ticket in live:
        admission.first_token(ticket, 0.5)
    admission.engine_reported(admission.fleet.loads[0], 5, 0.6)
    for ticket in live[1:]:
        admission.end(ticket, 1.0)
    assert in_flight(put_in_line(admission, 1, now=2.0)) == 0


# The peak


def test_the_peak_is_that_of_the_last_period_at_least() -> None:
    peak = Peak(5.0)
    for value, now in ((1, 0.0), (9, 1.0), (8, 2.0)):
        peak.note(value, now)
    assert peak.get(0, 5.9) == 9 and peak.get(3, 7.0) == 9
    assert peak.get(3, 11.0) == 3 and peak.get(0, 1000.0) == 0


def test_what_held_for_long_is_the_peak_when_it_falls() -> None:
    peak = Peak(5.0)
    peak.note(4, 0.0)
    peak.note(4, 100.0)  # right before it falls
    assert peak.get(0, 104.0) == 4 and peak.get(0, 106.0) == 4 and peak.get(0, 120.0) == 0


def test_no_calm_needed() -> None:
    limits = replace(LIMITS, jobs_calm_s=0.0)
    admission = new_admission(1, limits=limits)
    live, _ = call(admission, "live")
    [item] = put_in_line(admission, 1)
    admission.end(live, 1.0)
    admission.dispatch(1.1)
    assert item.placed_on is not None
    assert math.isinf(item.queue_by)
