"""Simulates an engine: slots, cache, chunked prefill, and steps that take longer the more calls run.

Tokens are continuous: between two events all running calls get them at one common rate. A token clock that advances at that
rate tells when each call ends, so a call costs two events, however long its answer.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hangup.sim.clock import VirtualClock


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The parameters of a simulated engine. The defaults roughly describe a mid-size model on one large GPU."""

    slots: int = 64
    kv_tokens: int = 1_000_000
    prefill_tokens_s: float = 30_000.0
    chunk_tokens: int = 1024  # prompt tokens that one step reads beside the running calls; 0: prompts are read elsewhere
    step_s: float = 0.012  # the base time of a step
    step_per_call_s: float = 0.0001  # added for each running call
    parallel: bool = False  # prompts are read concurrently without slowing each other: hosted APIs, wide engines
    deaf: bool = False  # it keeps computing for clients that hung up
    slow_from_s: float = float("inf")  # when the slow period starts
    slow_by: float = 1.0  # how many times as long everything takes in that period
    slow_until_s: float = float("inf")  # when it ends
    dead_from_s: float = float("inf")  # when the engine stops producing anything


class SimWork:
    """A call in an engine."""

    __slots__ = (
        "ends_at",
        "hung_up",
        "number",
        "on_end",
        "on_first",
        "output",
        "owner",
        "prompt",
        "slow_by",
        "started_at",
        "state",
    )

    def __init__(
        self,
        owner: Any,
        prompt: int,
        output: int,
        on_first: Callable[[SimWork], None],
        on_end: Callable[[SimWork], None],
        slow_by: float = 1.0,
    ) -> None:
        self.owner = owner
        self.prompt = prompt
        self.output = output
        self.on_first = on_first
        self.on_end = on_end
        self.slow_by = slow_by  # how many times as slowly the client reads as the engine could write
        self.state = WAITING
        self.hung_up = False  # the client has hung up; only a deaf engine keeps computing
        self.started_at = 0.0  # on the token clock
        self.ends_at = 0.0
        self.number = 0


WAITING, READING, RUNNING, ENDED = range(4)
_NEVER = float("inf")


@lru_cache(maxsize=64)
def _step_times(model: EngineModel) -> list[float]:
    """Return the step time for each number of running calls."""
    return [model.step_s + model.step_per_call_s * n for n in range(model.slots + 1)]


class SimEngine:
    __slots__ = (
        "_chunk_s",
        "_clock",
        "_decode_rate",
        "_number",
        "_prefill_rate",
        "_reading",
        "_remaining",
        "_running",
        "_speed",
        "_steps",
        "_then",
        "_tokens",
        "_version",
        "_waiting",
        "busy_s",
        "kv_used",
        "model",
        "read",
        "running",
        "taken",
        "waiting",
        "waiting_peak",
        "written",
    )

    def __init__(self, model: EngineModel, clock: VirtualClock) -> None:
        self.model = model
        self._clock = clock
        self._steps = _step_times(model)
        self._chunk_s = model.chunk_tokens / model.prefill_tokens_s
        self._speed = 1.0
        self._waiting: deque[SimWork] = deque()
        self._reading: deque[SimWork] = deque()
        self._remaining = 0.0  # prompt tokens of the first of `_reading` that are still unread
        self._running: list[tuple[float, int, SimWork]] = []
        self._tokens = 0.0  # the token clock
        self._then = 0.0  # when the token clock was last advanced
        self._decode_rate = self._prefill_rate = 0.0
        self._version = 0
        self._number = 0
        self.taken = 0  # slots in use
        self.running = 0  # of those, slots that generate
        self.waiting = 0
        self.kv_used = 0
        self.busy_s = 0.0
        self.read = 0.0  # prompt tokens computed
        self.written = 0.0  # output tokens computed
        self.waiting_peak = 0
        for moment in (model.slow_from_s, model.slow_until_s, model.dead_from_s):
            if moment < float("inf"):
                clock.at(moment, self._turn, None)

    def submit(self, work: SimWork) -> None:
        self._advance()
        self._waiting.append(work)
        self.waiting += 1
        self._admit()
        if self.waiting > self.waiting_peak:
            self.waiting_peak = self.waiting
        self._plan()

    def abort(self, work: SimWork) -> float:
        """Abort a call, and return the output tokens computed for it so far. A deaf engine keeps computing."""
        self._advance()
        computed = self.computed(work)
        work.hung_up = True
        if self.model.deaf or work.state == ENDED:
            return computed
        state, work.state = work.state, ENDED
        if state == WAITING:
            self.waiting -= 1
        else:
            self._leave(work)
            if state == RUNNING:
                self.running -= 1
                self.written += computed
            elif self._reading and self._reading[0] is work:
                self.read += work.prompt - self._remaining
                self._next_reading(drop=True)
        self._admit()
        self._plan()
        return computed

    def computed(self, work: SimWork) -> float:
        """Return the output tokens computed so far."""
        if work.state == ENDED:
            return work.output
        if work.state != RUNNING:
            return 0.0
        return min((self._tokens - work.started_at) / work.slow_by + 1, work.output)

    # Internals

    def _admit(self) -> None:
        """Move calls from the engine's own queue into free slots."""
        model = self.model
        while self._waiting and self.taken < model.slots:
            work = self._waiting[0]
            if work.state == ENDED:
                self._waiting.popleft()
                continue
            need = work.prompt + work.output
            if self.kv_used + need > model.kv_tokens and self.taken:
                return
            self._waiting.popleft()
            self.waiting -= 1
            self.taken += 1
            self.kv_used += need
            work.state = READING
            if model.parallel:
                self._clock.at(self._clock.now + work.prompt / model.prefill_tokens_s, self._read_alone, work)
                continue
            self._reading.append(work)
            if len(self._reading) == 1:
                self._remaining = float(work.prompt)

    def _leave(self, work: SimWork) -> None:
        self.taken -= 1
        self.kv_used -= work.prompt + work.output

    def _next_reading(self, *, drop: bool) -> None:
        reading = self._reading
        if drop or reading:
            reading.popleft()
        while reading and reading[0].state == ENDED:
            reading.popleft()
        if reading:
            self._remaining = float(reading[0].prompt)

    def _advance(self) -> None:
        now = self._clock.now
        passed = now - self._then
        if passed > 0:
            self._then = now
            if self.taken:
                self.busy_s += passed
                self._tokens += passed * self._decode_rate
                self._remaining -= passed * self._prefill_rate

    def _plan(self) -> None:
        """Set the rates and schedule the next event."""
        running = self._running
        while running and running[0][2].state == ENDED:
            heapq.heappop(running)
        self._version += 1
        speed = self._speed
        if not speed:
            self._decode_rate = self._prefill_rate = 0.0
            return
        step = self._steps[self.running]
        soonest = _NEVER
        self._decode_rate = speed / step
        self._prefill_rate = 0.0
        if self._reading:
            if self._chunk_s and self.running:
                mixed = self._chunk_s + step
                self._decode_rate = speed / mixed
                self._prefill_rate = speed * self.model.chunk_tokens / mixed
            else:
                self._prefill_rate = speed * self.model.prefill_tokens_s
            soonest = self._remaining / self._prefill_rate
        if running:
            ends = (running[0][0] - self._tokens) / self._decode_rate
            if ends < soonest:
                soonest = ends
        if soonest < _NEVER:
            self._clock.at(self._then + (soonest if soonest > 0 else 0.0), self._event, None, self._version)

    def _event(self, _: None, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        first = ended = None
        if self._reading and self._remaining <= 1e-6:
            first = self._reading[0]
            self._next_reading(drop=True)
            self._begin(first)
        elif self._running and self._running[0][0] <= self._tokens + 1e-6:
            ended = heapq.heappop(self._running)[2]
            ended.state = ENDED
            self.running -= 1
            self.written += ended.output
            self._leave(ended)
            self._admit()
        self._plan()
        if first is not None and not first.hung_up:
            first.on_first(first)
        if ended is not None and not ended.hung_up:
            ended.on_end(ended)

    def _begin(self, work: SimWork) -> None:
        """Start to generate for a call whose prompt has been read."""
        self.read += work.prompt
        work.state = RUNNING
        work.started_at = self._tokens
        work.ends_at = self._tokens + (work.output - 1) * work.slow_by
        self._number += 1
        self.running += 1
        heapq.heappush(self._running, (work.ends_at, self._number, work))

    def _read_alone(self, work: SimWork, _: int) -> None:
        if work.state != READING:
            return
        self._advance()
        self._begin(work)
        self._plan()
        if not work.hung_up:
            work.on_first(work)

    def _turn(self, _: None, __: int) -> None:
        """Make the engine slow, normal again, or dead."""
        self._advance()
        now, model = self._clock.now, self.model
        slow = model.slow_from_s <= now < model.slow_until_s
        self._speed = 0.0 if now >= model.dead_from_s else 1 / model.slow_by if slow else 1.0
        self._plan()
