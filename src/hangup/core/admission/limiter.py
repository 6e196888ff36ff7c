"""How many calls an engine may have at a time, learned from what can be seen of it.

A call whose first token has come is running for sure. One that was sent and has none is being read, or it stands in
the engine's own queue. How many an engine is reading at a time follows from how often first tokens come and how long one
takes when nobody is ahead of it; that many calls without a first token are allowed, plus `SPARE`, which is the most that
ever stands in the engine's queue. Nothing need be known about its slots: when they are all taken, first tokens come only
as others end, and so do new calls.

Running more at a time also makes each step slower. Beyond the step time that is allowed the number shrinks, slowly.

Jobs are not let in by any of this, since whatever they fill would soon be full: they get what the engine has been seen to
run at a time. When nobody else is there one more of them is tried now and then, which is how more is seen.
"""

from __future__ import annotations

import math

from hangup.core.admission.estimates import Peak

SPARE = 2
_BASE_GAIN = 0.2
_MEMORY = 4.0  # over so many first-token times, or a second, first tokens are counted
_SHRINK = 0.95
_GROW = 0.02
_RAN_S = 600.0  # how long it is remembered how many ran at a time
_TRY_S = (1.0, 10.0)  # pause after a try for one more that showed nothing; doubled each time
_SLOWER = 2.0  # against its best step time, which an engine may always take


class SlotLimiter:
    __slots__ = (
        "_base_s",
        "_count",
        "_first_at",
        "_ran",
        "_step_best",
        "_try_from",
        "_try_pause_s",
        "in_flight_max",
        "ran",
        "step_slo_s",
        "unstarted_max",
    )

    def __init__(self, step_slo_s: float = math.inf) -> None:
        self.step_slo_s = step_slo_s
        self.unstarted_max = SPARE + 1  # before anything is known: one that runs
        self.in_flight_max = math.inf
        self._base_s = 0.0  # first-token time of a call with nobody ahead
        self._count = 0.0  # of first tokens, fading
        self._first_at = -math.inf
        self._step_best = math.inf
        self._ran = Peak(_RAN_S)
        self.ran = 0  # calls with a first token at a time, at most
        self._try_from = -math.inf
        self._try_pause_s = _TRY_S[0]

    def first_token(self, waited_s: float, lone: bool, now: float) -> None:
        """`lone`: no other call was waiting for its first token when this one was sent."""
        if lone:
            self._base_s += (waited_s - self._base_s) * (_BASE_GAIN if self._base_s else 1.0)
        memory = max(_MEMORY * self._base_s, 1.0)
        self._count = self._count * math.exp((self._first_at - now) / memory) + 1
        self._first_at = now
        self.unstarted_max = SPARE + int((self._count - 1) * self._base_s / memory)

    def step(self, seconds: float, in_flight: int) -> None:
        """The engine's step time just now."""
        self._step_best = min(seconds, self._step_best * 1.001)
        if seconds > max(self.step_slo_s, _SLOWER * self._step_best):
            self.in_flight_max = max(1.0, min(self.in_flight_max, in_flight) * _SHRINK)
        elif in_flight >= self.in_flight_max - 1:
            self.in_flight_max += max(1.0, self.in_flight_max * _GROW)

    def runs(self, running: int, now: float) -> None:
        """So many calls have had their first token and not ended."""
        if running <= self._ran.latest and now < self._ran.until:
            return
        if running > self.ran:
            self._try_from, self._try_pause_s = now, _TRY_S[0]
        self.ran = self._ran.get(running, now)

    def one_more(self, in_flight: int, now: float) -> bool:
        """Whether to try if the engine runs more at a time than it has been seen to."""
        if in_flight != self.ran or now < self._try_from or in_flight + 1 > self.in_flight_max:
            return False
        self._try_from = now + self._try_pause_s
        self._try_pause_s = min(2 * self._try_pause_s, _TRY_S[1])
        return True

    def limit(self, in_flight: int, unstarted: int) -> int:
        """How many calls the engine may have, as things are."""
        return int(min(in_flight - unstarted + self.unstarted_max, self.in_flight_max))
