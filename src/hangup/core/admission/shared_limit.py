"""The learned limit of an engine to which several gateways send calls: each sees a part of its calls, and all learn as one.

    gateway: `SharedLimit` ── observations: first tokens, refusals, … ──▶ hub: `WholeLimit`
             ◀────── how many of the calls that it may have are yours ─────┘

The hub's limit is what one gateway with all these calls would have learned. A gateway goes on to learn from its own calls, for
the time in which it is cut off from the hub.
"""

from __future__ import annotations

import math
from typing import Final

from hangup.core.admission.limiter import COLD_MAX, FREE_SHARE, Evidence, LearnedLimit

NO_LIMIT: Final = 10**9  # calls
_SEEN_MAX: Final = 4096  # observations to keep for the hub: more than come between two reports,
_FIRST_TOKENS_MAX: Final = 16  # and first tokens: if more come, those are only counted
_POLL_S: Final = 0.2  # a report that no calls wait counts once in this time: each gateway asks the engine

FIRST_TOKEN: Final = 0
OVERDUE: Final = 1
REFUSED: Final = 2
STEP: Final = 3
WAITING: Final = 4
FORGET: Final = 5
Observation = tuple[float, ...]  # its time, its kind, and what was seen


class SharedLimit(LearnedLimit):
    """One gateway's part: what it has seen, and what it may use."""

    __slots__ = (
        "_came",
        "_noted",
        "_observed",
        "allowed",
        "follows",
        "limit_of_all",
        "most_running_of_all",
        "of_all",
        "running_elsewhere",
    )

    def __init__(self, step_slo_s: float = math.inf) -> None:
        super().__init__(step_slo_s)
        self.follows = True  # the hub decides; otherwise this gateway does, alone
        self.allowed = 0  # calls, by the hub; `NO_LIMIT` while there is no evidence that the engine queues
        self.of_all = Evidence.NONE  # why calls are limited, by the hub
        self.limit_of_all = 0  # how many calls all gateways together may have there,
        self.most_running_of_all = 0  # and the most of them that the engine was seen to run
        self.running_elsewhere = 0  # calls of other gateways that it runs now; `unstarted_elsewhere` are without a first token
        self._observed: list[Observation] = []
        self._noted = 0  # how many calls of this gateway ran at a time since the last report
        self._came = 0  # first tokens since then that are not among the observations

    # What the hub says

    def use(self, allowed: int) -> None:
        """Use so many places from now on."""
        self.allowed, self.follows = allowed, True
        self._bound()

    def go_alone(self) -> None:
        """Use what this gateway has learned itself: it is cut off from the hub."""
        self.follows = False
        self.unlimited = False
        self.running_elsewhere = self.unstarted_elsewhere = 0
        self._bound()

    def note_whole(
        self, evidence: str, limit: int, most_running: int, running_elsewhere: int, unstarted_elsewhere: int
    ) -> None:
        """Note what the hub knows of the whole."""
        self.of_all, self.limit_of_all, self.most_running_of_all = Evidence(evidence), limit, most_running
        self.running_elsewhere, self.unstarted_elsewhere = running_elsewhere, unstarted_elsewhere

    def _bound(self) -> None:
        super()._bound()
        if self.follows:
            self.unlimited = self.allowed >= NO_LIMIT and (self._seen > 0 or not self.by_tokens)

    def limit(self, in_flight: int, unstarted: int, held: int) -> float:
        if not self.follows:
            return super().limit(in_flight, unstarted, held)
        return in_flight - unstarted + COLD_MAX if self.allowed >= NO_LIMIT else self.allowed

    def unstarted_allowed(self, running: int) -> float:
        return math.inf if self.follows else super().unstarted_allowed(running)

    @property
    def in_flight_max(self) -> float:
        return self.allowed if self.follows else min(self.refused_max, self.slow_max)

    @property
    def evidence(self) -> Evidence:
        if self.follows:
            return self.of_all
        if self.queues is not Evidence.NONE:
            return self.queues
        if self.refused_max < self.slow_max:
            return Evidence.REFUSED
        return Evidence.SLOW if self.slow_max < math.inf else Evidence.NONE

    def has_free_slot(self, running: int) -> bool:
        if not self.follows:
            return super().has_free_slot(running)
        return running + self.running_elsewhere < FREE_SHARE * self.most_running_of_all

    # Observations, for the hub

    def take_observations(self, now: float) -> list[Observation]:
        """Return what was seen since the last time, with how long ago that was instead of the time."""
        seen, self._observed = self._observed, []
        return [(now - row[0], *row[1:]) for row in seen]

    def take_running(self, in_flight: int, unstarted: int, held: int) -> int:
        """Return how many of this gateway's calls the engine was seen to run at a time since the last report. Of answers in one
        piece, that is known only when one comes."""
        noted, self._noted = self._noted, 0
        return max(noted, in_flight - held - unstarted)

    def _observe(self, row: Observation) -> None:
        if len(self._observed) < _SEEN_MAX:
            self._observed.append(row)

    def overdue(self, sent_at: float, unstarted: int) -> None:
        super().overdue(sent_at, unstarted)
        self._observe((sent_at, OVERDUE, unstarted + self.unstarted_elsewhere))

    def first_token(
        self,
        prompt: int,
        waited_s: float,
        now: float,
        *,
        ahead: int,
        free: bool,
        late: bool | None,
        unqueued: bool,
        visible: bool,
    ) -> bool:
        came = self._skipped + 1
        learned = super().first_token(
            prompt, waited_s, now, ahead=ahead, free=free, late=late, unqueued=unqueued, visible=visible
        )
        if learned and len(self._observed) >= _FIRST_TOKENS_MAX:
            self._came += came
        elif learned:
            came, self._came = came + self._came, 0
            overdue = late is None and not unqueued
            self._observe((now, FIRST_TOKEN, prompt, waited_s, ahead, free, overdue, unqueued, visible, came))
        return learned

    def engine_reported(self, waiting: int, in_flight: float = math.inf, waited_s: float = math.inf) -> None:
        super().engine_reported(waiting, in_flight, waited_s)
        self._observe((0.0, WAITING, waiting, waited_s if waited_s < math.inf else -1.0))

    def refused(self, others: int, now: float) -> None:
        super().refused(others, now)
        self._observe((now, REFUSED))
        self._bound()

    def step(self, seconds: float, in_flight: int) -> None:
        super().step(seconds, in_flight)
        self._observe((0.0, STEP, seconds, min(self.step_slo_s, float(NO_LIMIT))))
        self._bound()

    def note_running(self, running: int, now: float) -> None:
        if running > self._noted:
            self._noted = running
        super().note_running(running, now)

    def forget(self, *, by_tokens: bool = True) -> None:
        """Start over. A gateway that has seen nothing yet has nothing to say about it to the others."""
        seen, follows, allowed = self._seen, self.follows, self.allowed
        super().forget(by_tokens=by_tokens)
        self.follows, self.allowed = follows, allowed
        if seen:
            self._observed = [(0.0, FORGET)]
        self._bound()


class WholeLimit(LearnedLimit):
    """The limit of all gateways together, at the hub."""

    __slots__ = ("_polled_at",)

    def __init__(self, step_slo_s: float = math.inf) -> None:
        super().__init__(step_slo_s)
        self._polled_at = -math.inf

    def observe(self, row: Observation, in_flight: int, now: float) -> None:
        """Learn from what a gateway has seen; `in_flight`: the calls of all."""
        at, kind = now - row[0], row[1]
        if kind == FIRST_TOKEN:
            self._observe_first_token(row, at)
            self.accepted(in_flight, at)
        elif kind == OVERDUE:
            self.overdue(at, int(row[2]))
        elif kind == REFUSED:
            self.refused(max(in_flight - 1, 1), at)
        elif kind == STEP:
            self.step_slo_s = row[3]
            self.step(row[2], in_flight)
        elif kind == WAITING:
            if row[2] or now >= self._polled_at + _POLL_S:
                self._polled_at = now
                self.engine_reported(int(row[2]), in_flight, row[3] if row[3] >= 0 else math.inf)
        elif kind == FORGET:
            self.forget(by_tokens=self.by_tokens)

    def _observe_first_token(self, row: Observation, at: float) -> None:
        _, _, prompt, waited_s, ahead, free, overdue, unqueued, visible, came = row
        # A gateway that is new does not know yet what is usual; together they do.
        late = None if overdue or unqueued else waited_s > self.overdue_after_s(int(prompt), bool(visible))
        self._skipped += int(came) - 1
        self.first_token(
            int(prompt),
            waited_s,
            max(at, self._first_at),
            ahead=int(ahead),
            free=bool(free),
            late=late,
            unqueued=bool(unqueued),
            visible=bool(visible),
        )

    def go_on_from(self, own: SharedLimit, now: float) -> None:
        """Go on from what the hub before this one had learned, as far as a gateway knows it: this hub has taken over."""
        self.by_tokens, self.step_slo_s = own.by_tokens, own.step_slo_s
        self._usual, self._reads_s, self._seen = own._usual, own._reads_s, own._seen  # noqa: SLF001 - a limit as this one is
        self.note_running(own.most_running_of_all, now)
        if own.of_all is Evidence.REFUSED:
            self.refused(own.limit_of_all, now)
        elif own.of_all is Evidence.SLOW:
            self.slow_max = float(own.limit_of_all)
        elif own.of_all is not Evidence.NONE:
            self.queues, self._late = own.of_all, 1.0
            self._note_full()
        self._bound()
