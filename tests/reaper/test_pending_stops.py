"""Which work counts as a zombie, in virtual time: `PendingStops` sees only the counters of a simulated engine."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hangup.core.reaper import EngineStatus, PendingStop, PendingStops, Slot, StopAccount, StopState

GRACE, LAG = 2.0, 3.0


def left(pending: PendingStops, id: str, at: float, slot: int | None = None, tokens: int = 0) -> PendingStop:
    stop = PendingStop(id, at, slot=slot, tokens=tokens)
    pending.add(stop)
    return stop


def slots(*busy: tuple[int, str, int]) -> EngineStatus:
    known = {id: Slot(id, True, task, tokens) for id, task, tokens in busy}
    rows = tuple(known.get(id, Slot(id, False)) for id in range(4))
    return EngineStatus(len(busy), slots=rows)


def test_a_pending_stop_begins_with_nothing_against_it() -> None:
    stop = PendingStop("x", 5.0)
    assert not stop.silent and not stop.abort_sent and stop.aborts == 0 and stop.account == StopAccount()
    assert stop.state is StopState.PENDING and stop.due == 5.0 and stop.tokens_after is None and stop.key == "x"


def test_the_grace_period_is_extended_by_a_standstill_of_ours() -> None:
    pending = PendingStops(GRACE)
    mine = left(pending, "a", at=10.0)
    pending.extend(5.0)
    assert pending.observe(EngineStatus(1), asked_at=16.9, now=16.9, live=0, peak=0) == [] and not pending.zombies
    assert pending.observe(EngineStatus(1), asked_at=17.1, now=17.1, live=0, peak=0) == [] and pending.zombies == [mine]


def test_a_free_slot_is_a_release_but_only_if_asked_after_the_end() -> None:
    pending = PendingStops(GRACE)
    mine = left(pending, "a", at=10.0, slot=2)
    assert pending.observe(slots(), asked_at=9.9, now=10.1, live=0, peak=1) == []
    assert pending.observe(slots(), asked_at=10.1, now=10.2, live=0, peak=0) == [mine]


def test_a_busy_slot_is_a_zombie_after_the_grace_with_what_it_computed_since() -> None:
    pending = PendingStops(GRACE)
    mine = left(pending, "a", at=0.0, slot=1, tokens=5)
    pending.observe(slots((1, "7", 6)), 0.5, 0.5, 0, 0)
    assert not pending.zombies
    pending.observe(slots((1, "7", 30)), 2.5, 2.5, 0, 0)
    assert pending.zombies == [mine] and mine.tokens_since == 25
    assert pending.observe(slots(), 3.0, 3.0, 0, 0) == [mine]


def test_another_task_in_the_slot_is_no_zombie() -> None:
    """Another task has the slot: it has fewer tokens than were delivered, or another task id."""
    pending = PendingStops(GRACE)
    fewer = left(pending, "a", at=0.0, slot=1, tokens=5)
    assert pending.observe(slots((1, "8", 2)), 1.0, 1.0, 0, 0) == [fewer]
    other = left(pending, "b", at=2.0, slot=1)
    pending.observe(slots((1, "8", 9)), 3.0, 3.0, 0, 0)
    assert pending.observe(slots((1, "9", 9)), 9.0, 9.0, 0, 0) == [other]


def test_calls_without_a_slot_of_their_own_put_a_conviction_off() -> None:
    pending = PendingStops(GRACE)
    left(pending, "a", at=0.0, slot=1)
    pending.observe(slots((1, "1", 1)), 2.5, 2.5, 1, 1, pinned=False)
    assert not pending.zombies and pending.held


def test_counts_convict_what_is_beyond_our_own_calls_for_longer_than_grace_and_lag() -> None:
    pending = PendingStops(GRACE, LAG)
    mine = left(pending, "a", at=0.0)
    for now in (1.0, 3.0, 4.9):
        assert pending.observe(EngineStatus(4), now, now, live=3, peak=3) == []
        assert not pending.zombies
    pending.observe(EngineStatus(4), 5.1, 5.1, live=3, peak=3)
    assert pending.zombies == [mine] and not pending.orphans


def test_a_call_that_may_not_be_in_the_counts_yet_is_not_released_by_them() -> None:
    """During a prefill of seconds, vLLM reports that nothing runs until the first step is over."""
    pending = PendingStops(GRACE, LAG)
    mine = PendingStop("a", 0.0)
    pending.add(mine, first_token=False)
    for now in (0.1, 1.0, LAG - 0.1):
        assert pending.observe(EngineStatus(0, tokens=7), now, now, live=0, peak=0) == []
    assert pending.observe(EngineStatus(0, tokens=7), LAG, LAG, live=0, peak=0) == [mine]  # no figures are older than that


def test_a_prompt_that_is_read_quickly_is_soon_out_of_figures_that_do_not_move() -> None:
    """The figures of an idle engine do not change: its places must not be held for as long as the longest prompt would take."""
    pending = PendingStops(GRACE, LAG)
    quick, slow = PendingStop("quick", 0.0, reading_s=0.05), PendingStop("slow", 0.0, reading_s=1.0)
    for stop in (quick, slow):
        pending.add(stop, first_token=False)
    assert pending.observe(EngineStatus(0, tokens=9), 0.1, 0.1, live=0, peak=2) == []
    assert pending.observe(EngineStatus(0, tokens=9), 0.4, 0.4, live=0, peak=0) == [quick]
    assert pending.observe(EngineStatus(0, tokens=9), 2.3, 2.3, live=0, peak=0) == [slow]


def test_figures_that_have_moved_tell_of_every_call_that_ended_before() -> None:
    pending = PendingStops(GRACE, LAG)
    mine = PendingStop("a", 0.0)
    pending.add(mine, first_token=False)
    assert pending.observe(EngineStatus(1, tokens=7), 0.1, 0.1, live=1, peak=1) == []
    assert pending.observe(EngineStatus(1, tokens=8), 0.4, 0.4, live=1, peak=1) == [mine]


def test_a_call_that_was_begun_while_the_engine_was_asked_excuses_nobody() -> None:
    """The engine counts one call: that is the abandoned one, since our new call came after the engine had counted."""
    pending = PendingStops(GRACE)
    mine = left(pending, "a", at=0.0)
    assert pending.observe(EngineStatus(1), asked_at=0.5, now=0.51, live=1, peak=1, unseen=1) == []
    assert pending.observe(EngineStatus(1), asked_at=1.0, now=1.01, live=1, peak=1) == [mine]


def test_what_may_be_the_work_that_still_runs_is_not_let_go_for_want_of_proof() -> None:
    """Three calls run and we have none, but the figures may be from when we had two: no zombie is proven yet."""
    pending = PendingStops(GRACE, LAG)
    first = left(pending, "a", at=0.0)
    assert pending.observe(EngineStatus(3), 0.5, 0.5, live=2, peak=3) == []
    second, third = left(pending, "b", at=1.0), left(pending, "c", at=2.0)
    pending.observe(EngineStatus(3), GRACE + LAG + 0.1, GRACE + LAG + 0.1, live=0, peak=2)
    assert not pending.zombies and pending.take_expired(GRACE + LAG + 0.1) == [], "in doubt it is held"
    pending.observe(EngineStatus(3), 12.0, 12.0, live=0, peak=0)
    assert pending.zombies == [first, second, third]
    assert pending.observe(EngineStatus(0), 13.0, 13.0, live=0, peak=0) == [first, second, third]


def test_doubt_has_an_end() -> None:
    pending = PendingStops(GRACE, LAG)
    mine = left(pending, "a", at=0.0)
    pending.observe(EngineStatus(1), 9.0, 9.0, live=0, peak=1)
    assert pending.take_expired(9.0) == []
    assert pending.take_expired(GRACE + 2 * (GRACE + LAG) + 0.1) == [mine]


def test_figures_that_come_late_convict_nobody() -> None:
    """The engine stopped at once; its figures are LAG seconds old."""
    pending = PendingStops(GRACE, LAG)
    left(pending, "a", at=0.0)
    for tenth in range(1, 100):
        now = tenth / 10
        pending.observe(EngineStatus(1 if now - LAG < 0 else 0), now, now, live=0, peak=0)
        assert not pending.zombies and not pending.orphans


def test_work_of_others_is_an_orphan_and_with_shared_it_is_nothing() -> None:
    pending = PendingStops(GRACE)
    pending.observe(EngineStatus(2), 1.0, 1.0, live=0, peak=0)
    assert pending.orphans == 2 and not pending.zombies
    shared = PendingStops(GRACE, shared=True)
    left(shared, "a", at=0.0)
    shared.observe(EngineStatus(5), 9.0, 9.0, live=0, peak=0)
    assert not shared.orphans and not shared.zombies
    assert [gone.call_id for gone in shared.take_expired(9.0)] == ["a"]


def test_several_answers_of_one_call_count_as_such() -> None:
    pending = PendingStops(GRACE)
    pending.observe(EngineStatus(4), 1.0, 1.0, live=4, peak=4)
    assert not pending.orphans


def test_an_engine_that_does_not_answer_keeps_the_place_and_is_judged_late() -> None:
    pending = PendingStops(GRACE, prefill_grace_s=10.0)
    left(pending, "a", at=0.0)
    pending.unanswered(2.1, 4.1)
    assert not pending.zombies and pending.overdue(4.1)
    pending.unanswered(10.5, 12.5)
    assert pending.zombies


def test_a_busy_engine_without_progress_is_frozen() -> None:
    pending = PendingStops(GRACE)
    for now, tokens in ((0.0, 1), (1.0, 2), (2.0, 2), (9.0, 2)):
        pending.observe(EngineStatus(1, tokens=tokens), now, now, live=1, peak=1)
    assert pending.frozen_s(9.0) == 7.0
    pending.observe(EngineStatus(0, tokens=2), 10.0, 10.0, live=0, peak=1)
    assert pending.frozen_s(10.0) < 0


@dataclass
class Work:
    id: str
    stops_at: float  # when the engine is done with it; inf while its client is there


class HealthyEngine(RuleBasedStateMachine):
    """An engine that stops every call within the grace, with figures up to LAG seconds old: no call may count as a zombie,
    and nothing may be held for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.book = PendingStops(GRACE, LAG)
        self.live: dict[str, Work] = {}
        self.stopping: list[Work] = []
        self.history: list[tuple[float, int]] = [(0.0, 0)]
        self.peak = 0
        self.calls = 0

    def _note(self) -> None:
        self.stopping = [work for work in self.stopping if work.stops_at > self.now]
        self.history.append((self.now, len(self.live) + len(self.stopping)))
        self.peak = max(self.peak, len(self.live))

    def _pass(self, seconds: float) -> None:
        ends = sorted(work.stops_at for work in self.stopping if work.stops_at <= self.now + seconds)
        target = self.now + seconds
        for moment in ends:
            self.now = moment
            self._note()
        self.now = target
        self._note()

    @rule()
    def call(self) -> None:
        self.calls += 1
        self.live[f"c{self.calls}"] = Work(f"c{self.calls}", float("inf"))
        self._note()

    @precondition(lambda self: self.live)
    @rule(takes=st.floats(0, GRACE * 0.99))
    def hang_up(self, takes: float) -> None:
        id, work = self.live.popitem()
        work.stops_at = self.now + takes
        self.stopping.append(work)
        left(self.book, id, self.now)
        self._note()

    @precondition(lambda self: self.live)
    @rule()
    def finish(self) -> None:
        self.live.popitem()
        self._note()

    @rule(seconds=st.floats(0.01, 3.0))
    def wait(self, seconds: float) -> None:
        self._pass(seconds)

    @rule(age=st.floats(0, LAG * 0.99))
    def look(self, age: float) -> None:
        shown = [count for at, count in self.history if at <= self.now - age][-1]
        peak, self.peak = self.peak, len(self.live)
        self.book.observe(EngineStatus(shown), self.now, self.now, len(self.live), peak)
        self.book.take_expired(self.now)

    @invariant()
    def nobody_is_convicted(self) -> None:
        assert not self.book.zombies and not self.book.orphans

    def teardown(self) -> None:
        self._pass(GRACE + LAG + 0.1)
        self.look(0.0)
        assert not self.book.held


TestHealthyEngine = HealthyEngine.TestCase
TestHealthyEngine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_frozen_slot_beside_a_moving_one_is_seen_by_itself() -> None:
    pending = PendingStops(GRACE)
    for second in range(10):
        pending.observe(slots((0, "1", 7), (1, "2", second)), second, second, 2, 2)
    assert pending.frozen_slot(9.0) == (0, 9.0) and pending.frozen_s(9.0) < 0
    pending.observe(slots((0, "1", 8), (1, "2", 9)), 10.0, 10.0, 2, 2)
    assert pending.frozen_slot(12.0) == (1, 3.0)  # the other one stands since 9


def test_work_that_was_there_before_us_is_an_orphan_that_may_be_acted_upon() -> None:
    pending = PendingStops(GRACE)
    for second in range(20):  # with calls of ours that come and go beside it
        live = second % 3
        pending.observe(EngineStatus(2 + live), second, second, live, 2)
    assert pending.orphaned_s(20.0) > 10
    pending.observe(EngineStatus(0), 21.0, 21.0, 0, 0)
    assert pending.orphaned_s(21.0) < 0


def test_work_that_comes_while_we_look_is_another_clients() -> None:
    pending = PendingStops(GRACE)
    pending.observe(EngineStatus(0), 0.0, 0.0, 0, 0)
    for second in range(1, 60):
        pending.observe(EngineStatus(2), second, second, 0, 0)
    assert pending.orphans == 2 and pending.orphaned_s(60.0) < 0


def test_work_that_becomes_more_is_another_clients() -> None:
    pending = PendingStops(GRACE)
    for second in range(60):
        pending.observe(EngineStatus(2 if second < 10 else 3), second, second, 0, 0)
    assert pending.orphans == 3 and pending.orphaned_s(60.0) < 0


def named(*calls: tuple[str, int], waiting: int = 0) -> EngineStatus:
    return EngineStatus(len(calls) - waiting, waiting, tokens=sum(tokens for _, tokens in calls), calls=dict(calls))


def test_an_engine_that_names_its_calls_is_believed_to_the_letter() -> None:
    """This holds however many other calls come and go, and whoever else uses the engine."""
    pending = PendingStops(GRACE, shared=True)
    stays, goes = left(pending, "stays", at=0.0, tokens=5), left(pending, "goes", at=0.0)
    assert pending.observe(named(("stays", 6), ("goes", 1), ("x", 1)), 0.0, 0.1, 1, 9) == []  # asked before its end
    assert pending.observe(named(("stays", 8), ("x", 1)), 0.5, 0.6, 1, 9) == [goes]
    pending.observe(named(("stays", 30), ("y", 1)), 2.5, 2.6, 1, 9)
    assert pending.zombies == [stays] and stays.tokens_since == 25
    assert pending.observe(named(("y", 2)), 3.0, 3.1, 1, 9) == [stays]


def test_work_of_others_on_an_engine_that_names_its_calls_is_counted() -> None:
    """Of four calls, one is live and one has ended; of the other two, one may be a call that was there when the figures were
    made."""
    pending = PendingStops(GRACE)
    left(pending, "ended", at=0.0)
    pending.observe(named(("ended", 1), ("a", 1), ("b", 1), ("c", 1)), 1.0, 1.0, live=1, peak=2)
    assert (pending.unexplained, pending.orphans) == (2, 1)
    pending.observe(named(("ended", 2), ("a", 2)), 1.5, 1.5, live=1, peak=2)
    assert (pending.unexplained, pending.orphans) == (0, 0)
    pending.observe(named(("b", 2)), 1.6, 1.6, live=0, peak=0)
    assert (pending.unexplained, pending.orphans, pending.held) == (1, 1, [])
    shared = PendingStops(GRACE, shared=True)
    shared.observe(named(("a", 1), ("b", 1)), 1.0, 1.0, live=0, peak=0)
    assert (shared.unexplained, shared.orphans) == (0, 0)


def test_a_release_that_later_figures_belie_is_taken_back() -> None:
    """The figures at its release were too optimistic; no other call can explain the work that still runs."""
    pending = PendingStops(GRACE, LAG)
    mine = left(pending, "a", at=0.0)
    assert pending.observe(EngineStatus(0), 1.0, 1.0, live=0, peak=0) == [mine]
    pending.observe(EngineStatus(1), GRACE + LAG, GRACE + LAG, live=0, peak=0)
    assert not pending.zombies and not pending.orphans, "these may still be figures from before its end"
    pending.observe(EngineStatus(1), GRACE + LAG + 0.1, GRACE + LAG + 0.1, live=0, peak=0)
    assert pending.zombies == [mine] and mine.released is None and mine.released_at is None and not pending.orphans


def test_a_release_of_long_ago_stays_one() -> None:
    pending = PendingStops(GRACE, LAG)
    mine, late = left(pending, "a", at=0.0), GRACE + 2 * (GRACE + LAG) + 0.1
    assert pending.observe(EngineStatus(0), 1.0, 1.0, live=0, peak=0) == [mine]
    pending.observe(EngineStatus(1), late, late, live=0, peak=0)
    assert not pending.zombies and pending.orphans == 1


def test_doubt_holds_a_call_and_convicts_nobody_but_not_for_ever() -> None:
    """Other processes die again and again, each with calls that nobody knows of."""
    pending = PendingStops(GRACE, LAG, prefill_grace_s=1.0)
    mine = left(pending, "a", at=0.0)
    for second in range(1, 100):
        pending.doubt(float(second))
        pending.observe(EngineStatus(1), second, second, live=0, peak=0)
        assert not pending.zombies and not pending.orphans
        if pending.take_expired(second):
            break
    assert mine not in pending.held and GRACE + LAG < second <= 3 * (GRACE + LAG + 1.0) + LAG + 2 * (GRACE + LAG) + 1
