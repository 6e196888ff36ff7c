"""`LearnedLimit`: learns how many calls an engine may have at a time, from what the gateway can see of it.

Unknown is not full: an engine gets every call until there is evidence that it queues. Evidence is

    its own report    it says that calls wait in it
    its refusals      429, 529, or 503 with a time to come back
    late tokens       first tokens come later than usual for prompts of their size, or are overdue
    slow steps        a token takes longer than `step_slo_s` and twice its best, and fewer calls make it quicker

    OPEN ── evidence ──▶ LIMITED ── on time again, and the limit does not bind ──▶ OPEN

While an engine is limited, the limiter bounds the number of calls *without a first token*. A call whose first token has come is
certainly running; one without is being read, or waits in the engine's own queue. How many prompts an engine reads at a time
follows from how often first tokens come and how long one usually takes. That many calls are allowed, plus `SPARE`, which is the
most that ever waits in the engine's queue. Nobody need know the engine's slots: when they are all taken, first tokens come only
as other calls end, and so new calls start only then. Each first token on time allows one more call, so the limit doubles in a
first-token time; a late one takes that back.

Jobs follow a different rule, because they would soon fill any limit: they get as many places as the engine has been seen to run
at a time. When there are no other calls, one more job is tried now and then, which is how a higher number is seen.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

from hangup.core.admission.estimates import Peak
from hangup.core.admission.first_token_time import FirstTokenTimes

SPARE: Final = 2
COLD_MAX: Final = 1024  # calls at a time for an engine that has not sent a single first token
LATE_BY: Final = 2.5  # a first token is late after this many times the usual time,
LATE_S: Final = 0.05  # plus this
_EASY_BY, _EASY_S = 1.5, 0.025  # a first token within this allows one more call
_LATE_SHARE = (0.4, 0.6)  # share of late first tokens: below 0.4 the engine does not queue, above 0.6 it does
FREE_SHARE: Final = 0.75  # with fewer than this share of the most it has run at a time, a slot was free
_ENOUGH: Final = 4  # first tokens before late ones count as evidence
_MANY: Final = 4  # the test whether fewer calls help needs at least this many calls without a first token,
_FEW: Final = 3  # and this many first tokens of calls that had at most half as many ahead;
_AS_LATE: Final = 0.8  # if those took at least this share of the time, fewer calls do not help
_USUAL_GAIN = (0.1, 0.5)  # how fast `_reads_s` follows, upward and downward
_LEARN_S = 0.001  # while none is late, one first token in this time is enough to learn from,
_SETTLED: Final = 64  # after this many
_HARDLY_LATE: Final = 0.001  # a share of late first tokens that counts as none
_MEMORY: Final = 4.0  # first tokens are counted over this many first-token times, or over a second
_SHRINK: Final = 0.95
_GROW: Final = 0.02
_HELPED: Final = 0.9  # with `_SHRUNK` of the calls, steps must take at most this share of their time, or shrinking is undone
_SHRUNK: Final = 0.7
_RAN_S: Final = 600.0  # how long to remember how many calls ran at a time
_TRY_S = (1.0, 10.0)  # pause after a try of one more job that showed nothing; doubled each time
_TRY_TOKENS = (4, 32)  # first tokens between two tries of one more call on a full engine; doubled each time
_SOON_S: Final = 0.25  # a call in the engine's queue should start within this time,
_SOON_SHARE: Final = 0.5  # or within this share of the usual first-token time, whichever is longer
_SLOWER: Final = 2.0  # times its best step time: an engine may always take that long
_REPORTED_WAITING_MAX: Final = SPARE  # this many calls may wait in the engine for a moment: it accepts calls between two steps
_AFTER_REFUSAL_S: Final = 1.0  # then one more call is tried
_FORGET_REFUSAL_S: Final = 60.0


class Evidence(StrEnum):
    """Why an engine's calls are limited."""

    NONE = "none"
    LATE = "late_first_tokens"
    WAITING = "engine_reports_waiting"
    REFUSED = "engine_refused"
    SLOW = "slow_steps"


_NONE: Final = Evidence.NONE  # Python 3.11 takes as long for a member of an enum as for a function call


class _InVain:
    """Detects that the limit does not help: first tokens stay as late with half as many calls ahead and slots to spare."""

    __slots__ = ("_few", "_many_s", "_unstarted", "few_s")

    def __init__(self, unstarted: int) -> None:
        self._unstarted = unstarted  # calls without a first token when the limit began
        self._many_s = 0.0  # first-token time with about that many calls ahead,
        self.few_s = 0.0  # and with at most half of them
        self._few = 0

    def see(self, ahead: int, free: bool, waited_s: float, *, on_time: bool) -> bool:
        if on_time:
            self._few = 0
        self._unstarted = max(self._unstarted, ahead)  # of those sent before the limit began
        if self._unstarted < _MANY:
            return False
        if ahead > self._unstarted * 0.75:
            self._many_s += (waited_s - self._many_s) * (0.25 if self._many_s else 1.0)
        elif free and ahead <= self._unstarted * 0.5:
            self.few_s += (waited_s - self.few_s) * (0.25 if self._few else 1.0)
            self._few += 1
        return self._few >= _FEW and 0.0 < self._many_s * _AS_LATE <= self.few_s


class LearnedLimit:
    """The learned limit of one engine."""

    __slots__ = (
        "_accepted_at",
        "_count",
        "_first_at",
        "_full",
        "_grown",
        "_in_vain",
        "_late",
        "_learned",
        "_learned_at",
        "_reads_s",
        "_refused_at",
        "_reported",
        "_reports_none_waiting",
        "_running_peak",
        "_seen",
        "_skipped",
        "_slow_from",
        "_step_best",
        "_tokens_to_try",
        "_try_after",
        "_try_from",
        "_try_pause_s",
        "_usual",
        "by_tokens",
        "most_running",
        "queues",
        "refused_max",
        "slow_max",
        "step_slo_s",
        "unlimited",
        "unstarted_elsewhere",
        "unstarted_max",
    )

    def __init__(self, step_slo_s: float = math.inf) -> None:
        self.step_slo_s = step_slo_s
        self.by_tokens = True  # whether late first tokens are evidence; not for hosted APIs
        self.queues = _NONE  # LATE or WAITING while calls without a first token are bounded
        self.unstarted_max = float(COLD_MAX)
        self.unstarted_elsewhere = 0  # calls of other gateways without a first token, as far as that is known (`SharedLimit`)
        self.unlimited = False  # it gets every call: the common case, which must cost almost nothing
        self.refused_max = math.inf  # the most calls at a time, by its refusals,
        self.slow_max = math.inf  # and by its step time
        self._usual = (FirstTokenTimes(), FirstTokenTimes())  # of whole answers, and of calls whose first token is visible
        self._reads_s = 0.0  # usual first-token time of the current mix of calls
        self._late = 0.0  # recent share of first tokens that were late
        self._reports_none_waiting = False  # the engine itself says that no calls wait
        self._in_vain = _InVain(0)
        self._grown = 0  # calls allowed beyond those being read, because calls were on time
        self._full = False  # calls beyond the most it has run were late
        self._try_after = _TRY_TOKENS[0]  # first tokens until one more call is tried on a full engine,
        self._tokens_to_try = self._try_after  # and how many of those remain
        self._reported = 0  # consecutive reports of waiting calls, or, below zero, of none
        self._seen = 0  # first tokens
        self._count = 0.0  # the same, decaying with time
        self._first_at = -math.inf
        self._learned_at = -math.inf  # when a first token was last learned from,
        self._learned = (0, False)  # of which size of prompt, and whether it was visible,
        self._skipped = 0  # and how many have come since
        self._refused_at = self._accepted_at = -math.inf
        self._step_best = math.inf
        self._slow_from: tuple[float, float] | None = None  # step time and calls when shrinking began
        self._running_peak = Peak(_RAN_S)
        self.most_running = 0  # the most calls at a time that it was seen to run
        self._try_from = -math.inf
        self._try_pause_s = _TRY_S[0]

    # Observations of calls

    def overdue_after_s(self, prompt: int, visible: bool) -> float:
        """Return how long after being sent a call's first token is overdue; infinite before anything is known."""
        usual = self._usual[visible].get(prompt) if self.by_tokens else None
        return math.inf if usual is None else LATE_BY * usual + LATE_S

    def has_free_slot(self, running: int) -> bool:
        """Return whether one more call would certainly run at once, as far as has been seen."""
        return running < FREE_SHARE * self.most_running

    def overdue(self, sent_at: float, unstarted: int) -> None:
        """Note that a call which may be queueing has no first token although it should."""
        if self._first_at < sent_at and unstarted >= SPARE:
            self._late = 1.0  # no other call has got one either: nothing moves
        self._judge(True, unstarted)

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
        """Learn from a first token; return False if it says nothing new, because many like it come, and none of them late.

        `ahead`: calls without a first token when this one was sent. `free`: there was a slot for it, as far as has been seen.
        `unqueued`: no call can have been ahead of it. `late`: None if its lateness was counted before, or is not evidence.
        """
        kind = (prompt.bit_length(), visible)
        if now - self._learned_at < _LEARN_S and kind == self._learned and not late and self._is_settled():
            self._first_at = now
            self._skipped += 1
            return False
        usual = self._usual[visible]
        if unqueued or self.queues is _NONE:
            usual_s = usual.observe(prompt, waited_s)
        else:
            usual.observe_lower(prompt, waited_s)
            usual_s = usual.get(prompt) or 0.0
        if self.queues is Evidence.LATE and self._in_vain.see(ahead, free, waited_s, on_time=late is False):
            usual_s = self._in_vain.few_s
            usual.replace(prompt, usual_s)
            self.queues, self._late, late = _NONE, 0.0, None
        off = usual_s - self._reads_s
        self._reads_s += off * (_USUAL_GAIN[off < 0] if self._reads_s else 1.0)
        memory = _MEMORY * self._reads_s
        if memory < 1.0:
            memory = 1.0
        came = self._skipped + 1
        self._count = self._count * math.exp((self._learned_at - now) / memory) + came
        self._first_at = self._learned_at = now
        self._learned, self._skipped = kind, 0
        self._seen += came
        if not late:
            self._tokens_to_try -= came
        if late is None:
            if not self.unlimited or self.queues is not _NONE:
                self._bound()
        else:
            self._judge(late, ahead)
            if not late and self.queues is not _NONE and waited_s <= _EASY_BY * usual_s + _EASY_S:
                self._grown += 1
        return True

    def _is_settled(self) -> bool:
        return self.unlimited and self.queues is _NONE and self._late < _HARDLY_LATE and self._seen >= _SETTLED

    def open_if_on_time(self) -> None:
        """Drop the limit if calls are on time; call this while the limit holds nobody back."""
        if self.queues is not _NONE and self._late < _LATE_SHARE[0]:
            self.queues = _NONE
            self._grown = 0
            self._bound()

    def _judge(self, late: bool, unstarted: int) -> None:
        if self._seen < _ENOUGH:  # the first to come are the quickest: compared with them all others look late
            late = late and self._late == 1.0
        # The more prompts are usually read at a time, the more first tokens it takes to tell a queue from random variation.
        self._late += (late - self._late) / (4 + 2 * self._reading())
        if late:
            self._grown, self._reports_none_waiting = self._grown // 2, False
            if not self._full or self._tokens_to_try <= 0:  # else it may be chance: it must not put off the next try
                self._note_full()
            if self.queues is _NONE and self._late > _LATE_SHARE[1]:
                self.queues = Evidence.LATE
                self._in_vain = _InVain(unstarted)
        if not self.unlimited or self.queues is not _NONE:
            self._bound()

    def _note_full(self) -> None:
        """Note that calls wait in the engine. If that followed a try, the next try comes later."""
        if self._full and self._tokens_to_try <= 0:
            self._try_after = min(2 * self._try_after, _TRY_TOKENS[1])
        self._full = True
        self._tokens_to_try = self._try_after

    def _bound(self) -> None:
        if self.queues is not _NONE:
            self.unlimited = False
            self.unstarted_max = float(SPARE + int(self._reading()))
        elif not self.unlimited:
            self.unstarted_max = math.inf if self._seen or not self.by_tokens else COLD_MAX
            self.unlimited = self.unstarted_max == self.refused_max == self.slow_max == math.inf

    def _reading(self) -> float:
        """Estimate how many prompts the engine reads at a time, from the rate of first tokens and the usual wait for one."""
        if self._count <= 1:
            return 0.0
        reads_s = self._reads_s
        memory = _MEMORY * reads_s
        return (self._count - 1) * reads_s / (memory if memory > 1.0 else 1.0)

    # Reports from the engine

    def engine_reported(self, waiting: int, in_flight: float = math.inf, waited_s: float = math.inf) -> None:
        """Note how many calls wait in the engine by its own report: that overrides any estimate.

        `waited_s`: how long the oldest of them has waited. An engine accepts calls between two steps, so those that arrived a
        moment ago always wait: that shows neither a queue nor room, unless the limit should have kept them here.

        With no more than `most_running` calls `in_flight`, a full engine has none waiting because they wait here: that shows no
        room, but it brings the next try of one more call closer.
        """
        if not waiting:
            self._reported = min(self._reported, 0) - 1
            self._late = 0.0
            if self._full and in_flight <= self.most_running:
                self._tokens_to_try -= 1
            elif self.queues is not _NONE and self._reported < -1:
                self._grown = 2 * max(self._grown, SPARE)
                self._reports_none_waiting = True
        elif waited_s <= max(_SOON_S, self._reads_s * _SOON_SHARE) and (self.queues is Evidence.NONE or waiting <= SPARE):
            self._reported = 0
        else:
            self._reported = max(self._reported, 0) + 1
            if waiting > _REPORTED_WAITING_MAX or self._reported > 1:
                self.queues = Evidence.WAITING
                self._late = 1.0
                self._grown, self._reports_none_waiting = 0, False
                self._note_full()
        self._bound()

    def refused(self, others: int, now: float) -> None:
        """Note that the engine refused a call while it had `others` more."""
        self._refused_at = now
        self.refused_max = max(1.0, min(self.refused_max, others))
        self.unlimited = False

    def refuses_all(self, sent_at: float) -> bool:
        """Return whether a call sent at `sent_at`, and refused now, came after another refusal with no call accepted in
        between."""
        return self._accepted_at < self._refused_at < sent_at

    def accepted(self, in_flight: int, now: float) -> bool:
        """Note that the engine accepted a call; return whether that allows one more after refusals."""
        self._accepted_at = now
        if self._refused_at == -math.inf or now - self._refused_at < _AFTER_REFUSAL_S:
            return False
        if in_flight < self.refused_max - 1:
            if now - self._refused_at > _FORGET_REFUSAL_S:
                self.refused_max, self._refused_at = math.inf, -math.inf
            return False
        self.refused_max += 1
        self._refused_at = now  # the next try also waits for a pause
        return True

    def step(self, seconds: float, in_flight: int) -> None:
        """Note the engine's current step time."""
        self._step_best = min(seconds, self._step_best * 1.001)
        if seconds > max(self.step_slo_s, _SLOWER * self._step_best):
            began_s, began = self._slow_from = self._slow_from or (seconds, min(self.slow_max, in_flight))
            if in_flight > _SHRUNK * began:
                self.slow_max = max(1.0, min(self.slow_max, in_flight) * _SHRINK)
                self.unlimited = False
            elif seconds > _HELPED * began_s:  # the engine itself has become slower, and fewer calls do not help
                self._step_best, self._slow_from = seconds, None
                self.slow_max = math.inf
            else:
                self._slow_from = None
        elif in_flight >= self.slow_max - 1:
            self.slow_max += max(1.0, self.slow_max * _GROW)
            self._slow_from = None

    def forget(self, *, by_tokens: bool = True) -> None:
        """Start over: the engine was restarted, or is another one."""
        self.__init__(self.step_slo_s)  # type: ignore[misc]
        self.by_tokens = by_tokens
        self._bound()

    # What the engine was seen to run

    def note_running(self, running: int, now: float) -> None:
        """Note how many calls run at a time."""
        if running <= self._running_peak.latest and now < self._running_peak.until:
            return
        if running > self.most_running:
            self._try_from, self._try_pause_s = now, _TRY_S[0]
            self._full, self._try_after = False, _TRY_TOKENS[0]
        self.most_running = self._running_peak.get(running, now)

    def try_more(self, in_flight: int, now: float) -> bool:
        """Return whether to try one more job than the engine has been seen to run, and schedule the next try."""
        if in_flight != self.most_running or now < self._try_from or in_flight + 1 > self.in_flight_max:
            return False
        self._try_from = now + self._try_pause_s
        self._try_pause_s = min(2 * self._try_pause_s, _TRY_S[1])
        return True

    # Conclusions

    @property
    def in_flight_max(self) -> float:
        return min(self.refused_max, self.slow_max)

    @property
    def evidence(self) -> Evidence:
        """Return why calls are limited; the strongest evidence first."""
        if self.queues is not _NONE:
            return self.queues
        if self.refused_max < self.slow_max:
            return Evidence.REFUSED
        return Evidence.SLOW if self.slow_max < math.inf else _NONE

    def limit(self, in_flight: int, unstarted: int, held: int) -> float:
        """Return how many calls the engine may have now; `held` of its calls have ended and are not known to be gone."""
        running = in_flight - unstarted
        most = running + self.unstarted_allowed(running)
        if most > self.refused_max:
            most = self.refused_max
        if most > self.slow_max:
            most = self.slow_max
        if self._full and self.most_running and not self._reports_none_waiting:  # `most_running` 0 would shut it out
            memory = _MEMORY * self._reads_s
            seldom = self._count - 1 < SPARE / _SOON_S * (memory if memory > 1.0 else 1.0)
            known = self.most_running + held + (self._tokens_to_try <= 0)
            if seldom and known < most:
                # Slots get free too seldom: a call had better wait here than in the engine, where no other can overtake it.
                return known
        return most

    def unstarted_allowed(self, running: int) -> float:
        """Return how many calls may be without a first token. Beyond the number that the engine was seen to run, only one more
        is allowed at a time, unless the engine itself reports that none waits."""
        more = self._grown
        if more > 1 and not self._reports_none_waiting:
            # A call that has ended here may still count, and its successor already: that many fewer are certainly free.
            free = self.most_running - running - SPARE
            if free < more:
                more = free if free > 1 else 1
        return self.unstarted_max + more
