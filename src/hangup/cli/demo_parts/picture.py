"""What `hangup demo` shows: a table with both sides, and a verdict in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hangup.cli.demo_parts.crowd import CrowdTally
from hangup.terminal import count, fit

_LABEL, _SIDE = 31, 22  # columns
_BAR = 18
_UNEQUAL = 1.2  # × as many tokens in the second half: something else slowed the first one down


@dataclass(frozen=True, slots=True)
class Stuck:
    """For how long an engine had calls and computed nothing for them, and what it did meanwhile."""

    seconds: float = 0.0
    restarts: int = 0
    drafted: int = 0  # tokens that speculative decoding guessed, none of which became part of an answer
    cancels: int = 0  # that reached the engine and that it never read


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """One side, now or at its end."""

    name: str
    seconds: float
    of_s: float
    tally: CrowdTally
    computed: float  # tokens, by the engine's own count
    busy_s: float
    in_engine: int = 0  # calls that run or wait there now
    stuck: Stuck | None = None  # None if that is not watched

    @property
    def wasted(self) -> float:
        return max(0.0, self.computed - self.tally.tokens)

    @property
    def wasted_share(self) -> float:
        return self.wasted / self.computed if self.computed else 0.0

    @property
    def wasted_s(self) -> float:
        return self.busy_s * self.wasted_share


Row = tuple[str, Callable[[PhaseResult], str]]


def table(results: list[PhaseResult], width: int = 80, *, live: bool = False) -> list[str]:
    """Return the figures of each side beside each other, in lines that fit; `live`: also what is going on now."""
    rows: list[Row] = [
        ("", lambda o: o.name),
        ("seconds", lambda o: f"{min(o.seconds, o.of_s):.0f} of {o.of_s:.0f}" if live else f"{o.of_s:.0f}"),
        ("requests", lambda o: count(o.tally.requests)),
        ("  completed", lambda o: count(o.tally.completed)),
        ("  the client gave up", lambda o: count(o.tally.hung_up)),
        ("  refused", lambda o: count(o.tally.refused)),
        ("  unfinished", lambda o: count(o.tally.unfinished)),
    ]
    if results and results[0].stuck is not None:
        rows += [
            ("engine stuck in its draft loop", lambda o: f"{_stuck(o).seconds:.1f} s"),
            ("  tokens drafted for nobody", lambda o: count(_stuck(o).drafted)),
            ("  cancels that it never read", lambda o: count(_stuck(o).cancels)),
            ("engine restarts", lambda o: count(_stuck(o).restarts)),
        ]
    else:
        rows += [
            ("tokens computed by the engine", lambda o: count(o.computed)),
            ("  for nobody", lambda o: f"{count(o.wasted)} ({o.wasted_share:.0%})"),
            ("  █ for a client, ░ for nobody", _bar),
            ("engine time for nobody", lambda o: f"{o.wasted_s:.1f} s of {o.busy_s:.1f}"),
        ]
    rows += [
        ("first token, p50", lambda o: o.tally.first_token_words(0.5)),
        ("first token, p99", lambda o: o.tally.first_token_words(0.99)),
    ]
    if live:
        rows += [
            ("calls in the engine now", lambda o: count(o.in_engine)),
            ("clients there now", lambda o: count(o.tally.connected)),
        ]
    label = max(12, min(_LABEL, width - 2 - len(results) * _SIDE))
    return [
        fit(f"  {fit(name, label):<{label}}" + "".join(f"{value(o):>{_SIDE}}" for o in results), width) for name, value in rows
    ]


def _stuck(result: PhaseResult) -> Stuck:
    return result.stuck or Stuck()


def _bar(result: PhaseResult) -> str:
    if not result.computed:
        return "-"
    nobody = round(_BAR * result.wasted_share)
    return "█" * (_BAR - nobody) + "░" * nobody


def verdict(without: PhaseResult, behind: PhaseResult) -> str:
    """Return what the figures say, in one sentence; also if they say nothing."""
    before, after = without.tally.completed, behind.tally.completed
    if without.stuck is not None and behind.stuck is not None:
        if not behind.stuck.restarts or behind.stuck.seconds >= without.stuck.seconds or after <= before:
            return f"This run was too short for a verdict: {after} answers instead of {before}; take more --seconds."
        return (
            f"The engine got stuck in its draft loop: without hangup it stayed there for {without.stuck.seconds:.0f} s and "
            f"completed {before} answers; hangup restarted it after {behind.stuck.seconds:.0f} s, and it completed {after}."
        )
    shares = f"{behind.wasted_share:.0%} of its tokens for nobody instead of {without.wasted_share:.0%}"
    if behind.computed > _UNEQUAL * without.computed:  # by the same engine, at the same load, and it never had a pause
        return f"The machine was slower during the first half, so the answers cannot be compared; the engine computed {shares}."
    if after <= before:
        return f"This run shows no gain in answers ({after} instead of {before}); the engine computed {shares}."
    times = f" ({after / before:.1f} ×)" if before else ""
    return f"With hangup, the same engine completed {after} answers instead of {before}{times}: it computed {shares}."
