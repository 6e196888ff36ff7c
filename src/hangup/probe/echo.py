"""The echo: what a canary call hears of work that nobody sees, where an engine reports nothing. Pure functions.

All slots but one are held by live streams, and the client in the last slot leaves. A canary that is sent then waits until that
slot is free: at once if the engine stops, until the abandoned answer's own end if it does not. How long undisturbed canaries
take, on the same machine in the same minutes, says how far to trust that. Several trials are weighed against three
hypotheses: the engine stops, it does not, it stops some. A verdict needs `CONFIDENCE`; without it there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from hangup.probe.verdict import Judgement, Ruling, untold

CONFIDENCE = 0.98
TRIALS_MAX = 12
QUIET_MIN = 18  # undisturbed canaries: with n of them, a false alarm rarer than 1 in n + 2 is not claimed
_STOPPED, _RAN_ON = 0.35, 0.75  # of the abandoned answer's rest
_SPREAD_MAX = 0.25  # of the rest of an abandoned answer; undisturbed canaries that vary by more hide a late stop
_PRIORS = {"stops": 0.48, "never": 0.48, "some": 0.04}


class Echo(StrEnum):
    QUIET = "quiet"  # the slot was free at once
    BETWEEN = "between"  # free before the abandoned answer's own end
    BUSY = "busy"  # free only then


@dataclass(frozen=True, slots=True)
class EchoTrial:
    """One canary after one departure."""

    canary_s: float  # from sending it to its first token
    remaining_s: float  # how long the abandoned answer would have gone on when the canary was sent
    reading_s: float = 0.0  # of this, for how long the engine would have read the prompt

    def tokens_s(self, lasted_s: float) -> float:
        """Return for how long it computed tokens, if it went on for so long."""
        return max(lasted_s - self.reading_s, 0.0)


@dataclass(frozen=True, slots=True)
class QuietTimes:
    """First-token times of undisturbed canaries."""

    times: tuple[float, ...]

    @property
    def middle(self) -> float:
        return median(self.times)

    @property
    def spread(self) -> float:
        """How much later than usual an undisturbed canary may be: the latest one seen."""
        return max(self.times) - self.middle

    def error(self, remaining_s: float) -> float:
        """Return the chance that an undisturbed canary is taken for a late one; never less than the sample can show."""
        late = sum(echo_of(EchoTrial(time, remaining_s), self.middle) is not Echo.QUIET for time in self.times)
        return (1 + late) / (len(self.times) + 2)


def echo_of(trial: EchoTrial, quiet_s: float) -> Echo:
    share = (trial.canary_s - quiet_s) / trial.remaining_s if trial.remaining_s > 0 else 0.0
    if share < _STOPPED:
        return Echo.QUIET
    return Echo.BUSY if share > _RAN_ON else Echo.BETWEEN


def saturates(trial: EchoTrial, quiet: QuietTimes) -> bool:
    """Return whether a crowd of live streams held a canary back: if not, there is nothing to hear."""
    return echo_of(trial, quiet.middle) is Echo.BUSY


def weigh(trials: Sequence[EchoTrial], quiet: QuietTimes) -> tuple[str, float]:
    """Return the likeliest hypothesis (stops, never, some) and the probability that it is true."""
    scores = {name: math.log(prior) for name, prior in _PRIORS.items()}
    for trial in trials:
        error = quiet.error(trial.remaining_s)
        ran_on = echo_of(trial, quiet.middle) is Echo.BUSY
        scores["stops"] += math.log(error if ran_on else 1 - error)
        scores["never"] += math.log(1 - error if ran_on else error)
        scores["some"] += math.log(0.5)
    best = max(scores, key=lambda name: scores[name])
    return best, 1 / sum(math.exp(score - scores[best]) for score in scores.values())


def is_decided(trials: Sequence[EchoTrial], quiet: QuietTimes) -> bool:
    return len(trials) >= TRIALS_MAX or weigh(trials, quiet)[1] >= CONFIDENCE


def judge_echo(
    trials: Sequence[EchoTrial], quiet: QuietTimes, within_s: float, rate: float, wanted_s: float = 0.0
) -> Judgement:
    """Decide from canaries; `rate` is the speed of a stream in tokens a second.

    Abandoned answers should go on for at least `wanted_s`: the end of a shorter one cannot be told from a late stop.
    """
    if len(quiet.times) < QUIET_MIN or not trials:
        return untold("too few undisturbed calls to compare with", len(trials))
    best, probability = weigh(trials, quiet)
    said = f"echo: {len(trials)} canaries against {len(quiet.times)} undisturbed ones"
    if probability < CONFIDENCE:
        return untold(f"{said}; the likeliest answer is only {probability:.0%} sure", len(trials))
    if quiet.spread > _SPREAD_MAX * wanted_s > 0:
        return untold(f"{said}; those vary by {quiet.spread:.1f} s: too much for an echo", len(trials))
    lasted_s = median(trial.remaining_s for trial in trials)
    if best != "stops" and lasted_s < wanted_s:
        return untold(
            f"{said}; the answers would have ended by themselves after {lasted_s:.1f} s: too soon to tell", len(trials)
        )
    late = [trial for trial in trials if echo_of(trial, quiet.middle) is Echo.BUSY]
    excesses = [max(trial.canary_s - quiet.middle, 0.0) for trial in trials]
    if best == "stops":
        ruling = Ruling.LATE if median(excesses) - quiet.spread > within_s else Ruling.STOPPED
        bound_s = median(trial.canary_s for trial in trials) - min(quiet.times)  # the canary may have been a quick one
        burnt_s = sum(trial.tokens_s(excess) for trial, excess in zip(trials, excesses, strict=True))
        return Judgement(ruling, said, len(trials), 0, max(bound_s, 0.0), round(burnt_s * rate), confidence=probability)
    ran_on = len(trials) if best == "never" else max(len(late), 1)
    burnt = round(sum(trial.tokens_s(trial.remaining_s) for trial in late) * rate)
    ruling = Ruling.NEVER if best == "never" else Ruling.PARTLY
    return Judgement(ruling, said, len(trials), ran_on, median(excesses), burnt, confidence=probability)
