"""From what the engine's own figures showed after a departure to a verdict. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

FIGURES = "the engine's own figures"
VAGUE = "asked too rarely to say whether within"
_NOTHING = 2  # tokens: the probe counts events with text, an engine counts tokens
UNSTEADY = "answers end by themselves, some sooner than others: too soon to tell a stop from that"
SURE_STOP = 0.35  # of such an answer's rest; what went on for longer may have ended by itself
_RATE_MAX = 2.0  # times as fast as measured: a machine may have become less busy
RAN_ON = 0.8  # work that lasted for this share of the rest of its answer was not stopped: it ended by itself


class Ruling(StrEnum):
    STOPPED = "stopped"
    LATE = "stopped late"
    PARTLY = "partly stopped"  # of several departures, some did not stop the engine
    NEVER = "never stopped"
    UNTOLD = "cannot be told"
    BROKE = "broke"  # the stack no longer serves, or other clients lost their streams


FAULTS = (Ruling.BROKE, Ruling.NEVER, Ruling.PARTLY, Ruling.LATE)


@dataclass(frozen=True, slots=True)
class Look:
    """One answer of the engine's figures. Times are seconds since the departure; what it shows was true between the two."""

    asked_at: float
    answered_at: float
    excess: int  # calls in the engine beyond those of ours that still have a client
    tokens: int | None = None  # computed since the trial began

    def since(self, later_s: float) -> Look:
        """Return the same with times since a later moment."""
        return replace(self, asked_at=self.asked_at - later_s, answered_at=self.answered_at - later_s)


@dataclass(frozen=True, slots=True)
class Trial:
    """What was seen when `departed` clients left at once."""

    departed: int
    looks: Sequence[Look]
    remaining_s: float  # how long the longest of the abandoned answers would have gone on
    remaining_tokens: int  # how many tokens all of them still had to come
    delivered: int = 0  # tokens that clients of the probe got during the trial, or that were computed before the departure
    settle_s: float = 0.4  # how long the engine must be idle before that is believed
    lag_s: float = 0.0  # how old its figures may be
    wanted_s: float = 0.0  # how long that should at least have been, for a verdict that nothing stopped it
    exact: bool = True  # tokens are the engine's count; otherwise what was seen of its slots, which may be less
    rate: float = 0.0  # tokens a second of one call, as measured before; 0: unknown
    reads: bool = False  # the engine was reading the prompts: that is work, though no token comes of it
    waits: bool = False  # the calls never had a slot: that costs nothing
    unsteady: bool = False  # answers end by themselves, some sooner than others


@dataclass(frozen=True, slots=True)
class Judgement:
    ruling: Ruling
    evidence: str
    departed: int = 1
    ran_on: int = 0  # departures that did not stop the engine
    stopped_s: float | None = None  # an upper bound, from the departure
    tokens: int | None = None  # computed after the departure
    tokens_counted: bool = False  # by the engine; otherwise estimated from its speed
    confidence: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def is_vague(self) -> bool:
        """Whether it stopped, perhaps late: the engine was asked too rarely to tell."""
        return any(note.startswith(VAGUE) for note in self.notes)

    def with_note(self, note: str) -> Judgement:
        return replace(self, notes=(*self.notes, note))

    def after_waiting(self, waited_s: float) -> Judgement:
        """Return the same for a call that waited first, which cost nothing: times count from the departure."""
        return self if self.stopped_s is None or not waited_s else replace(self, stopped_s=self.stopped_s + waited_s)

    def broke(self, note: str) -> Judgement:
        return replace(self, ruling=Ruling.BROKE, notes=(note, *self.notes))


def untold(why: str, departed: int = 1) -> Judgement:
    return Judgement(Ruling.UNTOLD, why, departed)


def judge(trial: Trial, within_s: float) -> Judgement:
    """Decide what became of the work of clients that left."""
    looks = [look for look in trial.looks if look.answered_at > 0]
    if not looks:
        return untold("the engine's figures could not be read", trial.departed)
    idle_from = len(looks)
    while idle_from and looks[idle_from - 1].excess <= 0:
        idle_from -= 1
    tokens = _tokens_after(trial, looks)
    if idle_from == len(looks):
        return _still_busy(trial, looks, tokens)
    upper = looks[idle_from].answered_at
    lower = max(looks[idle_from - 1].asked_at - trial.lag_s, 0.0) if idle_from else 0.0
    if looks[-1].answered_at - upper < trial.settle_s:
        return untold("the engine was not watched for long enough", trial.departed)
    if trial.unsteady and not trial.waits and _may_have_ended(trial, tokens, upper):
        return untold(UNSTEADY, trial.departed)
    stuck = _stuck(trial, looks[:idle_from], tokens)
    ended_itself = _ended_itself(trial, looks[:idle_from], tokens, lower, upper)
    if ended_itself is None:
        return untold("the engine was asked too rarely to tell a stop from the answer's own end", trial.departed)
    if ended_itself and upper < RAN_ON * trial.wanted_s:
        return untold(f"the answer ended by itself after {upper:.1f} s: too soon to tell", trial.departed)
    if ended_itself:
        return _ran_on(trial, stuck, tokens, upper)
    tokens = 0 if trial.waits and tokens is None else tokens
    costs = trial.reads or tokens is None or tokens > _NOTHING  # work that waited and was then dropped cost nothing
    burnt = tokens if tokens is not None else _estimated(trial, upper)
    ruling = Ruling.LATE if lower > within_s and costs else Ruling.STOPPED
    if trial.unsteady and ruling is Ruling.LATE:
        return untold(UNSTEADY, trial.departed)
    found = Judgement(ruling, FIGURES, trial.departed, 0, upper, burnt, tokens is not None and trial.exact)
    is_vague = ruling is Ruling.STOPPED and upper > within_s and costs
    return found.with_note(f"{VAGUE} {within_s:g} s") if is_vague else found


def _may_have_ended(trial: Trial, tokens: int | None, upper: float) -> bool:
    """Return whether abandoned answers that end by themselves may have done so, instead of having been stopped."""
    if tokens is not None and trial.exact:
        return tokens > max(SURE_STOP * trial.remaining_tokens, _NOTHING)
    return upper > SURE_STOP * trial.remaining_s


def _tokens_after(trial: Trial, looks: Sequence[Look]) -> int | None:
    """Return how many tokens were computed after the departure; None if the engine does not count these."""
    last = looks[-1].tokens
    if last is None or last < trial.delivered - _NOTHING:
        return None  # a count that leaves out cancelled calls, or counts them at their end
    return max(last - trial.delivered, 0)


def _ended_itself(trial: Trial, busy: Sequence[Look], tokens: int | None, lower: float, upper: float) -> bool | None:
    """Return whether the work, or some of it, went on to the answers' own end; None if that cannot be told.

    Where the engine counts tokens, those decide: the machine may have been slower when the speed was measured. Calls that were
    there for most of the time must then have got nearly all of their tokens.
    """
    expected = RAN_ON * trial.remaining_tokens / trial.departed  # of one call
    if tokens is not None and expected and (trial.exact or (trial.departed == 1 and tokens >= expected)):
        later = [look.excess for look in busy if look.asked_at >= lower / 2]
        lasting = max(1, min(trial.departed, round(median(later)))) if later else trial.departed
        return tokens >= expected * lasting
    if tokens is not None and trial.rate and trial.departed == 1 and busy:
        most = (busy[-1].tokens or 0) - trial.delivered + trial.rate * _RATE_MAX * (upper - lower)
        if most < expected:  # when it was last seen at work it had so many to come that it cannot have got them since
            return False
    end_s = RAN_ON * trial.remaining_s
    if lower >= end_s:
        return True
    return None if upper >= end_s else False


def _stuck(trial: Trial, looks: Sequence[Look], tokens: int | None) -> int:
    """Return how many calls were not stopped: by their tokens, or by how many were there when answers were about to end."""
    if trial.departed > 1 and tokens is not None and trial.exact and trial.remaining_tokens:
        return max(1, min(trial.departed, round(tokens * trial.departed / trial.remaining_tokens)))
    until = RAN_ON * trial.remaining_s
    late = [look.excess for look in looks if until / 2 <= look.asked_at <= until]
    excess = min(late) if late else looks[-1].excess if looks else 0
    return max(1, min(trial.departed, excess))


def _estimated(trial: Trial, lasted_s: float) -> int | None:
    if not trial.remaining_s:
        return None
    return round(trial.remaining_tokens * min(lasted_s / trial.remaining_s, 1.0))


def _ran_on(trial: Trial, stuck: int, tokens: int | None, upper: float) -> Judgement:
    counted = tokens is not None and trial.exact
    burnt = tokens if counted else round(trial.remaining_tokens * stuck / trial.departed)
    ruling = Ruling.NEVER if stuck == trial.departed else Ruling.PARTLY
    return Judgement(ruling, FIGURES, trial.departed, stuck, upper, burnt, counted)


def _still_busy(trial: Trial, looks: Sequence[Look], tokens: int | None) -> Judgement:
    watched = looks[-1].answered_at
    if watched < RAN_ON * trial.remaining_s:
        return untold("the engine was not watched for long enough", trial.departed)
    stuck = _stuck(trial, looks, tokens)
    if trial.departed > 1 and tokens is not None and trial.exact and trial.remaining_tokens:
        ended = tokens * trial.departed // trial.remaining_tokens  # by themselves; the others are still there
        stuck = max(1, min(trial.departed, ended + looks[-1].excess))
    found = replace(_ran_on(trial, stuck, tokens, watched), stopped_s=None)
    if found.tokens_counted and (tokens or 0) < RAN_ON * trial.remaining_tokens * found.ran_on / trial.departed:
        return found.with_note(f"after {watched:.1f} s the engine still reports work, and computes nothing")
    return found.with_note(f"still at work after {watched:.1f} s")
