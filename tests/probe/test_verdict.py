"""Verdicts from figures and from echoes: pure functions, fed with what engines of known behaviour would show."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hangup.probe.echo import CONFIDENCE, QUIET_MIN, EchoTrial, QuietTimes, is_decided, judge_echo, weigh
from hangup.probe.verdict import Look, Ruling, Trial, judge

REST_S, REST_TOKENS, WITHIN_S = 4.0, 200, 1.0
paces = st.floats(0.05, 0.3)
delays = st.floats(0.0, 0.15)  # between a question and its answer


def trial_of(ends_s: list[float], pace_s: float, delay_s: float, *, counts: bool, lag_s: float = 0.0) -> Trial:
    """Return what the probe sees of calls that end after these seconds: figures are from some time between query and answer."""
    looks, at, per_call = [], 0.01, REST_TOKENS
    until = max(ends_s) + lag_s + 2.0
    while at < until:
        true_at = max(at + delay_s / 2 - lag_s, 0.0)
        tokens = round(sum(min(true_at, end) / REST_S * per_call for end in ends_s))
        looks.append(Look(at, at + delay_s, sum(end > true_at for end in ends_s), tokens if counts else None))
        at += pace_s + delay_s
    return Trial(len(ends_s), looks, REST_S, per_call * len(ends_s), lag_s=lag_s, exact=counts)


@given(end_s=st.floats(0.0, 0.9), pace=paces, delay=delays, counts=st.booleans())
def test_a_quick_stop_is_a_stop(end_s: float, pace: float, delay: float, counts: bool) -> None:
    found = judge(trial_of([end_s], pace, delay, counts=counts), WITHIN_S)
    assert found.ruling is Ruling.STOPPED
    assert found.stopped_s is not None and found.stopped_s >= end_s - delay, "an upper bound"


@given(end_s=st.floats(1.6, 2.4), pace=paces, delay=delays, counts=st.booleans())
def test_a_stop_after_the_bound_is_late(end_s: float, pace: float, delay: float, counts: bool) -> None:
    assert judge(trial_of([end_s], pace, delay, counts=counts), WITHIN_S).ruling is Ruling.LATE


@given(speed=st.floats(0.95, 1.3), pace=st.floats(0.05, 0.2), delay=delays, counts=st.booleans())
def test_an_answer_that_ends_by_itself_was_never_stopped(speed: float, pace: float, delay: float, counts: bool) -> None:
    """This holds even if the engine is somewhat faster or slower than before."""
    trial = trial_of([REST_S * speed], pace, delay, counts=False)
    looks = [replace(look, tokens=round(min(look.asked_at / (REST_S * speed), 1) * REST_TOKENS)) for look in trial.looks]
    found = judge(replace(trial, looks=looks, exact=True) if counts else trial, WITHIN_S)
    assert found.ruling is Ruling.NEVER and found.ran_on == 1


@given(stopped=st.integers(1, 6), deaf=st.integers(1, 6), pace=paces, delay=delays, counts=st.booleans())
def test_of_a_crowd_those_that_ran_on_are_counted(stopped: int, deaf: int, pace: float, delay: float, counts: bool) -> None:
    found = judge(trial_of([0.1] * stopped + [REST_S] * deaf, pace, delay, counts=counts), WITHIN_S)
    assert (found.ruling, found.ran_on) == (Ruling.PARTLY, deaf)
    found = judge(trial_of([REST_S] * deaf, pace, delay, counts=counts), WITHIN_S)
    assert (found.ruling, found.ran_on) == (Ruling.NEVER, deaf)


@given(
    stopped=st.integers(0, 3), deaf=st.integers(1, 4), speed=st.floats(0.6, 2.0), pace=st.floats(0.05, 0.15), late=st.booleans()
)
def test_counted_tokens_decide_when_the_machine_changes_its_speed(
    stopped: int, deaf: int, speed: float, pace: float, late: bool
) -> None:
    """Answers end by themselves sooner or later than measured; for comparison, a whole crowd that stops late."""
    ends_s = [1.6] * (stopped + deaf) if late else [0.05] * stopped + [REST_S * speed] * deaf
    looks = [
        Look(
            at,
            at + 0.01,
            sum(end > at for end in ends_s),
            round(sum(min(at, end) for end in ends_s) / REST_S / speed * REST_TOKENS),
        )
        for at in (pace * step for step in range(1, round(12 / pace)))
    ]
    trial = Trial(len(ends_s), looks, REST_S, REST_TOKENS * len(ends_s))
    found = judge(trial, WITHIN_S)
    if late:
        assert found.ruling is (Ruling.LATE if 1.6 / REST_S / speed < 0.75 else found.ruling)
    else:
        assert found.ruling is (Ruling.PARTLY if stopped else Ruling.NEVER) and found.ran_on == deaf


@given(end_s=st.floats(0.0, 0.9), lag_s=st.floats(0.0, 2.0), pace=paces)
def test_old_figures_make_nobody_late(end_s: float, lag_s: float, pace: float) -> None:
    assert judge(trial_of([end_s], pace, 0.01, counts=False, lag_s=lag_s), WITHIN_S).ruling is Ruling.STOPPED


def test_what_was_dropped_in_the_queue_cost_nothing() -> None:
    looks = [Look(at / 10, at / 10 + 0.01, int(at < 30), 0) for at in range(1, 60)]
    assert judge(Trial(1, looks, REST_S * 2, REST_TOKENS), WITHIN_S).ruling is Ruling.STOPPED


def test_rare_looks_are_not_enough_to_tell_a_stop_from_the_end() -> None:
    looks = [Look(1.25, 1.26, 1), Look(2.5, 2.51, 1), Look(3.75, 3.76, 0), Look(5.0, 5.01, 0)]
    assert judge(Trial(1, looks, REST_S, REST_TOKENS, exact=False), WITHIN_S).ruling is Ruling.UNTOLD


def test_without_looks_there_is_no_verdict() -> None:
    assert judge(Trial(1, [], REST_S, REST_TOKENS), WITHIN_S).ruling is Ruling.UNTOLD
    assert judge(Trial(1, [Look(-1, -0.5, 1)], REST_S, REST_TOKENS), WITHIN_S).ruling is Ruling.UNTOLD
    busy = [Look(0.1, 0.2, 1), Look(0.3, 0.4, 1)]
    assert judge(Trial(1, busy, REST_S, REST_TOKENS), WITHIN_S).ruling is Ruling.UNTOLD, "watched for too short a time"


def test_an_engine_that_says_it_works_and_computes_nothing_is_stuck() -> None:
    looks = [Look(at / 2, at / 2 + 0.01, 1, 0) for at in range(1, 20)]
    found = judge(Trial(1, looks, REST_S, REST_TOKENS), WITHIN_S)
    assert found.ruling is Ruling.NEVER and found.stopped_s is None and "computes nothing" in found.notes[0]


def test_what_is_still_at_work_was_not_stopped_either() -> None:
    """A storm on a deaf engine with fewer slots, slower than before: eleven calls ended by themselves, one has not."""
    looks = [Look(float(at), at + 0.01, 12 - at // 2, REST_TOKENS * at // 2) for at in range(1, 23)]
    found = judge(Trial(12, looks, REST_S, 12 * REST_TOKENS), WITHIN_S)
    assert (found.ruling, found.ran_on) == (Ruling.NEVER, 12)


QUIET = QuietTimes(tuple(0.05 + 0.01 * (index % 5) for index in range(QUIET_MIN)))
noises = st.floats(0.0, 0.8)


@given(st.lists(noises, min_size=3, max_size=9))
def test_quiet_canaries_are_a_stop(noise: list[float]) -> None:
    trials = [EchoTrial(QUIET.middle + late, REST_S) for late in noise]
    assert is_decided(trials, QUIET)
    found = judge_echo(trials, QUIET, WITHIN_S, 50.0)
    assert found.ruling is Ruling.STOPPED
    assert (found.stopped_s or 0) > 0, "a canary that was itself a quick one may have waited"


@given(st.lists(st.floats(0.85, 1.5), min_size=3, max_size=9))
def test_canaries_that_wait_for_the_end_mean_that_nothing_stopped(shares: list[float]) -> None:
    trials = [EchoTrial(QUIET.middle + share * REST_S, REST_S) for share in shares]
    found = judge_echo(trials, QUIET, WITHIN_S, 50.0)
    assert found.ruling is Ruling.NEVER and found.ran_on == len(trials) and found.confidence >= CONFIDENCE


@given(st.lists(st.floats(1.7, 2.7), min_size=3, max_size=9))
def test_canaries_in_between_mean_a_late_stop(waits: list[float]) -> None:
    found = judge_echo([EchoTrial(QUIET.middle + wait, REST_S) for wait in waits], QUIET, WITHIN_S, 50.0)
    assert found.ruling is Ruling.LATE and min(waits) <= (found.stopped_s or 0) <= max(waits) + QUIET.spread


@given(st.permutations([0.0] * 5 + [REST_S] * 5))
def test_some_and_some_is_partly(waits: list[float]) -> None:
    found = judge_echo([EchoTrial(QUIET.middle + wait, REST_S) for wait in waits], QUIET, WITHIN_S, 50.0)
    assert (found.ruling, found.ran_on) == (Ruling.PARTLY, 5)


@given(st.lists(st.floats(0, 6), min_size=1, max_size=9), st.lists(st.floats(0.01, 6), min_size=QUIET_MIN, max_size=40))
def test_no_claim_is_made_beyond_the_confidence(waits: list[float], quiet: list[float]) -> None:
    trials, times = [EchoTrial(wait, REST_S) for wait in waits], QuietTimes(tuple(quiet))
    found = judge_echo(trials, times, WITHIN_S, 50.0)
    assert found.ruling is Ruling.UNTOLD or weigh(trials, times)[1] >= CONFIDENCE


def test_one_canary_or_few_quiet_ones_prove_nothing() -> None:
    assert not is_decided([EchoTrial(0.05, REST_S)], QUIET)
    few = QuietTimes(QUIET.times[: QUIET_MIN - 1])
    assert judge_echo([EchoTrial(0.05, REST_S)] * 9, few, WITHIN_S, 50.0).ruling is Ruling.UNTOLD


def test_an_answer_that_was_too_short_is_no_evidence() -> None:
    """The machine was slow when the speed was measured: a stop after 2 s and the answer's own end are the same."""
    trials = [EchoTrial(QUIET.middle + 1.97, 1.9)] * 3
    assert judge_echo(trials, QUIET, WITHIN_S, 50.0, wanted_s=2.6).ruling is Ruling.UNTOLD
    assert judge_echo(trials, QUIET, WITHIN_S, 50.0, wanted_s=1.5).ruling is Ruling.NEVER
    quick = [EchoTrial(QUIET.middle, 1.9)] * 3
    assert judge_echo(quick, QUIET, WITHIN_S, 50.0, wanted_s=2.6).ruling is Ruling.STOPPED, "that can be told"


def test_undisturbed_calls_that_vary_too_much_are_no_measure() -> None:
    """On a machine that is far too busy, a stop after 2 s is no later than an undisturbed call may be by chance."""
    noisy = QuietTimes((*QUIET.times[1:], 2.5))
    trials = [EchoTrial(noisy.middle + 2.0, 6.0)] * 4
    assert judge_echo(trials, noisy, WITHIN_S, 50.0, wanted_s=2.6).ruling is Ruling.UNTOLD


@given(pace=st.floats(0.5, 1.2), reads_s=st.floats(1.0, 9.0))
def test_a_prompt_that_is_read_for_longer_than_reckoned_is_no_answer_that_ran_on(pace: float, reads_s: float) -> None:
    """Seen in its slot without a token until it was gone: nothing was computed for nobody."""
    looks = [Look(n * pace, n * pace + 0.01, int(n * pace < reads_s), 0) for n in range(1, 40)]
    slow = Trial(1, looks, 2.0, 4000, exact=False, rate=1000.0)
    assert judge(slow, WITHIN_S).ruling is Ruling.STOPPED
    deaf = replace(slow, looks=[replace(look, tokens=round(min(look.asked_at, reads_s) * 4000 / reads_s)) for look in looks])
    assert judge(deaf, WITHIN_S).ruling is not Ruling.STOPPED or reads_s < WITHIN_S + 2 * pace


def test_a_prompt_that_is_read_for_nobody_is_work_without_tokens() -> None:
    looks = [Look(at, at + 0.01, 1 if at < 2.5 else 0, 0) for at in (step * 0.1 for step in range(1, 40))]
    waits = judge(Trial(1, looks, REST_S + 3, REST_TOKENS), WITHIN_S)
    reads = judge(Trial(1, looks, REST_S + 3, REST_TOKENS, reads=True), WITHIN_S)
    assert (waits.ruling, reads.ruling) == (Ruling.STOPPED, Ruling.LATE) and reads.tokens == 0
    looks = [replace(look, tokens=None) for look in looks]
    waits, runs = (judge(Trial(1, looks, REST_S + 3, REST_TOKENS, waits=waits), WITHIN_S) for waits in (True, False))
    assert (waits.ruling, waits.tokens, runs.ruling) == (Ruling.STOPPED, 0, Ruling.LATE), "where tokens are not counted"


def test_an_echo_of_a_prompt_that_is_read_counts_no_tokens() -> None:
    quiet = QuietTimes((0.1,) * QUIET_MIN)
    stops = judge_echo([EchoTrial(2.1, 6.0, reading_s=2.0)] * 3, quiet, WITHIN_S, rate=50)
    assert stops.ruling is Ruling.LATE and stops.tokens == 0, "it stopped when the prompt was read"
    never = judge_echo([EchoTrial(6.1, 6.0, reading_s=2.0)] * 3, quiet, WITHIN_S, rate=50)
    assert never.ruling is Ruling.NEVER and never.tokens == 3 * 4 * 50


@given(end_s=st.floats(0.0, 4.0), counts=st.booleans(), pace=paces, delay=delays)
def test_an_answer_that_may_have_ended_by_itself_is_no_stop(end_s: float, counts: bool, pace: float, delay: float) -> None:
    """Engines that do not know `ignore_eos` end answers when they like: only a quick stop can be told from that."""
    trial = replace(trial_of([end_s], pace, delay, counts=counts), unsteady=True)
    ruling = judge(trial, WITHIN_S).ruling
    assert ruling is Ruling.STOPPED if end_s < 0.2 * REST_S - pace - delay else ruling in (Ruling.STOPPED, Ruling.UNTOLD)
    assert ruling is Ruling.UNTOLD or end_s <= 0.4 * REST_S
