"""Calls that ended while their engine was at work on them, until the engine itself shows that it has let go.

    left ──▶ held ──▶ released      a status that was asked for after its end shows the work gone
                 └──▶ zombie ──▶ released      the work was still there when the grace had passed
                 └──▶ unknown       nothing could be learned until the grace had passed

A socket that was closed, or an abort that was answered with 200, is no evidence. Two kinds of it are:

- Slots. A call that was pinned to a slot is gone when the slot is free or does something else: exact.
- Counts. Whatever an engine runs beyond our own calls, and beyond those that ended within the grace, is work that nobody
  waits for. That is exact only in number: the name is that of the ended call which it most probably is. It needs an
  engine that serves nobody else (`shared = false`), and allows for figures that come late (`lag_s`). A call without a first
  token may not have come into them yet: vLLM tells of nothing but steps that are over, and a prefill is a step of seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from hangup.core.reaper.engine_status import EngineStatus, Slot

_STEP_S = 0.25  # what a step may take besides a prompt
REMEMBERED = 256  # ended calls of which one may turn out to be what still runs


class StopState(StrEnum):
    """What is known of the work that an ended call left behind, from the best to the worst."""

    VERIFIED = "verified"  # gone, by the engine's own word
    RESTARTED = "restarted"  # gone with the process that had it
    UNVERIFIED = "unverified"  # nothing could be learned
    PENDING = "pending"  # nothing is known yet
    ZOMBIE = "zombie"  # it runs on


class PendingStop:
    """What an ended call left behind in an engine. `place` is the caller's: what is held until it is released."""

    __slots__ = (
        "abort_sent",
        "aborts",
        "at",
        "booked",
        "call_id",
        "cause",
        "choices",
        "estimated",
        "figures",
        "grace_s",
        "key",
        "model",
        "on_confirmed",
        "place",
        "reading_s",
        "released",
        "released_at",
        "saved",
        "silent",
        "slot",
        "task",
        "tenant",
        "tokens",
        "tokens_now",
        "zombie_since",
    )

    def __init__(
        self, call_id: str, at: float, *, key: str = "", slot: int | None = None, tokens: int = 0, choices: int = 1
    ) -> None:
        self.call_id = call_id
        self.key = key or call_id  # the engine's name for it
        self.slot = slot
        self.tokens = tokens  # at its end
        self.tokens_now: int | None = None  # as the engine tells
        self.choices = choices
        self.at = at
        self.grace_s = 0.0
        self.silent = False  # it had sent nothing yet
        self.reading_s: float | None = None  # how long its prompt takes to be read, if that is known
        self.figures: tuple[object, ...] | None = None  # the engine's first ones after its end
        self.tenant = self.model = self.cause = ""  # whose it was, and how its call ended
        self.booked = 0  # tokens since its end that are in the ledger
        self.estimated = False  # they are a share of what several may have had
        self.saved: tuple[int, float] = (0, 0.0)  # tokens and money that its end was thought to have saved
        self.abort_sent = False  # by id, at its end
        self.aborts = 0  # sent after the first
        self.task = ""
        self.zombie_since: float | None = None
        self.released: StopState | None = None  # how, once it is no longer held
        self.released_at: float | None = None
        self.place: Any = None
        self.on_confirmed: Callable[[], None] | None = None  # who waits for that

    def __repr__(self) -> str:
        return f"<leftover {self.call_id} slot={self.slot} {'zombie' if self.zombie_since is not None else 'held'}>"

    @property
    def due(self) -> float:
        """When its grace is over."""
        return self.at + self.grace_s

    @property
    def fate(self) -> StopState:
        return self.released or (StopState.PENDING if self.zombie_since is None else StopState.ZOMBIE)

    def let_go(self, how: StopState, now: float) -> None:
        self.released, self.released_at = how, now

    @property
    def tokens_since(self) -> int | None:
        """Computed since its end, as far as the engine tells."""
        return None if self.tokens_now is None else max(0, self.tokens_now - self.tokens)

    @property
    def tokens_after(self) -> int | None:
        """The same, or what was booked to it where the engine tells no more than a sum; None when nothing is known."""
        return self.tokens_since if self.tokens_since is not None else self.booked or None

    @property
    def tokens_exact(self) -> bool:
        """Whether that is the engine's own number for this call, and no estimate."""
        return self.tokens_now is not None or not self.estimated


class PendingStops:
    """One backend's leftovers. Times are monotonic seconds."""

    def __init__(self, grace_s: float, lag_s: float = 0.0, *, prefill_grace_s: float = 0.0, shared: bool = False) -> None:
        self.grace_s = grace_s
        self.lag_s = lag_s  # how old the engine's figures may be
        self.prefill_grace_s = prefill_grace_s  # more for a call without a first token: a prefill runs on
        self.shared = shared
        self.held: list[PendingStop] = []  # oldest first
        self.orphans = 0  # work that is neither ours nor was
        self.unexplained = 0  # answers that the engine was at, by its last figures, beyond those we wait for
        self.orphans_since: float | None = None  # as far as they were there before we came, and nobody else was seen
        self.frozen_since: float | None = None  # busy, and nothing moves
        self._progress: tuple[object, ...] = ()
        self._slots: dict[int, tuple[Slot, float]] = {}  # each busy one, and since when it has not moved
        self._others_at_most = math.inf  # at some moment there was no more work than this that is not ours
        self._recent: deque[PendingStop] = deque(maxlen=REMEMBERED)  # released or given up, newest last
        self._peaks: deque[tuple[float, int]] = deque()  # most calls of ours at a time, between two looks

    def __repr__(self) -> str:
        return f"<book held={len(self.held)} zombies={len(self.zombies)} orphans={self.orphans}>"

    @property
    def zombies(self) -> list[PendingStop]:
        return [left for left in self.held if left.zombie_since is not None]

    def left(self, leftover: PendingStop, *, first_token: bool = True) -> None:
        """A call has ended, and its engine was told to stop."""
        leftover.silent = not first_token
        leftover.grace_s = self.grace_s + (0.0 if first_token else self.prefill_grace_s)
        self.held.append(leftover)

    def reset(self) -> list[PendingStop]:
        """The engine was started anew: all of it is gone."""
        gone, self.held = self.held, []
        self._recent.clear()
        self._peaks.clear()
        self._slots.clear()
        self.orphans, self.unexplained, self.frozen_since, self._progress = 0, 0, None, ()
        self.orphans_since, self._others_at_most = None, 0
        return gone

    # Evidence

    def observe(
        self, status: EngineStatus, asked_at: float, now: float, live: int, peak: int, *, unseen: int = 0, pinned: bool = True
    ) -> list[PendingStop]:
        """What the engine answered to a question of `asked_at`; returns what it has let go of.

        `live` counts the answers that our calls are waiting for there now, `peak` the most since the last look, `unseen`
        those of them that it may not have counted yet: what it counts in their stead is somebody else's;
        `pinned` says that each of our calls has its own slot.
        """
        self._watch_progress(status, now)
        self._peaks.append((now, max(live, peak)))
        while self._peaks[0][0] < asked_at - self.lag_s and len(self._peaks) > 1:
            self._peaks.popleft()
        most = max(count for _, count in self._peaks)
        if status.calls is not None:
            released = self._by_name(status.calls, status.cut, asked_at, now)
            self._count_others(status, max(live - unseen, 0), most)
            self._forget(released)
            return released
        exact = status.slots is not None
        released = self._by_slot([left for left in self.held if exact and left.slot is not None], status, asked_at, now, pinned)
        if not self.shared:
            rest = [left for left in self.held if not exact or left.slot is None]
            released += self._by_count(rest, status, asked_at, now, max(live - unseen, 0), most)
            self._watch_orphans(now)
        self._forget(released)
        return released

    def passed(self, now: float) -> list[PendingStop]:
        """Those of which nothing was learned in their grace: they are let go unverified, but not while they may be what the
        engine runs beyond our own calls and could still be convicted of it."""
        in_doubt = self.unexplained - sum(left.choices for left in self.zombies)
        late = []
        for left in self.held:
            if left.zombie_since is not None or now <= left.due + self.lag_s:
                continue
            if in_doubt > 0 and now <= left.due + 2 * (self.lag_s + self.grace_s):
                in_doubt -= left.choices
            else:
                late.append(left)
        self._forget(late)
        return late

    def unanswered(self, asked_at: float, now: float) -> None:
        """The engine did not say what it runs, though it is there. Its place stays taken for longer, since a large batch can
        keep an engine from answering; then it is a zombie."""
        for left in self.held:
            late = now > left.due + self.lag_s + self.prefill_grace_s
            if left.at < asked_at and late and left.zombie_since is None:
                left.zombie_since = now

    def late(self, now: float) -> bool:
        """Whether anything is held beyond its grace, as the clock alone tells."""
        return any(now > left.due for left in self.held)

    def all_late(self, now: float) -> bool:
        """Whether something is held, and all of it beyond its grace: no prefill of an ended call keeps the engine busy."""
        return bool(self.held) and all(now > left.due + self.lag_s for left in self.held)

    def next_due(self, now: float) -> float:
        """When the next grace is over."""
        return min((left.due for left in self.held if left.due >= now), default=math.inf)

    def overdue(self, now: float) -> bool:
        """Whether anything is held beyond its grace, convicted or not."""
        return any(now > left.due + self.lag_s for left in self.held)

    def _forget(self, gone: Iterable[PendingStop]) -> None:
        away = set(gone)
        if away:  # all of ten thousand clients may leave at once
            self._recent.extend(left for left in self.held if left in away)
            self.held = [left for left in self.held if left not in away]

    def _by_name(self, calls: dict[str, int], cut: Mapping[str, int], asked_at: float, now: float) -> list[PendingStop]:
        """The engine says which calls it has: exact, whoever else uses it."""
        released = []
        for left in self.held:
            if asked_at <= left.at:
                continue
            if left.key not in calls:
                left.tokens_now = cut.get(left.key, left.tokens_now)
                released.append(left)
                continue
            left.tokens_now = calls[left.key]
            if left.zombie_since is None and now > left.due:
                left.zombie_since = now
        return released

    def _count_others(self, status: EngineStatus, live: int, most: int) -> None:
        """What is neither a call of ours nor one that ended: only its number is asked for."""
        ended = sum(left.key in (status.calls or ()) for left in self.held)
        self.unexplained = 0 if self.shared else status.work - live - ended
        self.orphans = 0 if self.shared else max(0, status.work - most - ended)

    def _by_slot(
        self, lefts: list[PendingStop], status: EngineStatus, asked_at: float, now: float, pinned: bool
    ) -> list[PendingStop]:
        released = []
        for left in lefts:
            assert left.slot is not None
            slot = status.slot(left.slot)
            if asked_at <= left.at:
                continue
            if slot is None or not _still(left, slot):
                released.append(left)
                continue
            left.task, left.tokens_now = slot.task, slot.tokens
            if left.zombie_since is None and now > left.due:
                if pinned:
                    left.zombie_since = now
                else:  # a call without a slot of its own may have got this one
                    left.grace_s += self.grace_s
        return released

    def _by_count(
        self, lefts: list[PendingStop], status: EngineStatus, asked_at: float, now: float, live: int, most: int
    ) -> list[PendingStop]:
        slots_taken = sum(left.choices for left in self.held if left.slot is not None)
        beyond = self.unexplained = status.work - live - slots_taken
        released, rest = [], sum(left.choices for left in lefts)
        # Those that have been at it for long are kept longest: the usual time to stop is much shorter than the grace.
        for left in sorted(lefts, key=lambda left: (now - left.at > left.grace_s / 2, left.at)):
            if self._tell_of(left, status, asked_at) and rest - left.choices >= max(beyond, 0):
                released.append(left)
                rest -= left.choices
        gone = set(released)
        self._convict([left for left in lefts if left not in gone], status.work - most - slots_taken, now)
        return released

    def _tell_of(self, left: PendingStop, status: EngineStatus, asked_at: float) -> bool:
        """Whether the call would be in these counts if it still ran."""
        if asked_at <= left.at:
            return False
        lag_s = self.lag_s if left.reading_s is None else min(self.lag_s, 2 * left.reading_s + _STEP_S)
        if not left.silent or asked_at - lag_s >= left.at:
            return True
        if left.figures is None:
            left.figures = status.progress
        return status.progress != left.figures  # a step has ended since

    def _convict(self, lefts: list[PendingStop], beyond: int, now: float) -> None:
        """`beyond` what was ours at any time that the figures may be from: the young among the ended may still be in it."""
        young = sum(left.choices for left in (*self._recent, *lefts) if now <= left.due + self.lag_s)
        sure = beyond - young
        for left in sorted(lefts, key=lambda left: left.at):
            if now > left.due + self.lag_s:
                if sure > 0 and left.zombie_since is None:
                    left.zombie_since = now
                sure -= left.choices
        for left in reversed(list(self._recent)):  # released by a figure that was too good
            if sure <= 0 or left.slot is not None or now > left.due + 2 * (self.lag_s + self.grace_s):
                continue
            if now > left.due + self.lag_s:
                self._recent.remove(left)
                left.zombie_since, left.released, left.released_at = now, None, None
                self.held.append(left)
                sure -= left.choices
        self.orphans = max(0, sure)

    def _watch_progress(self, status: EngineStatus, now: float) -> None:
        if not status.work or status.progress != self._progress or not status.shows_progress:
            self.frozen_since = None
        elif self.frozen_since is None:
            self.frozen_since = now
        self._progress = status.progress
        busy = [slot for slot in status.slots or () if slot.busy]
        self._slots = {slot.id: (slot, self._unmoved_since(slot, now)) for slot in busy}

    def _unmoved_since(self, slot: Slot, now: float) -> float:
        before, since = self._slots.get(slot.id, (None, now))
        return since if slot == before else now

    def frozen_s(self, now: float) -> float:
        """How long the engine has been busy without getting anything done, by its own figures. Some count nothing of what they
        do for embeddings: whether anything came of calls must be asked besides."""
        return -math.inf if self.frozen_since is None else now - self.frozen_since

    def frozen_slot(self, now: float) -> tuple[int, float] | None:
        """The slot that has been busy for longest with nothing done, and for how long; others may move beside it."""
        rows = ((id, now - since) for id, (_, since) in self._slots.items())
        return max(rows, key=lambda row: row[1], default=None)

    def _watch_orphans(self, now: float) -> None:
        """Whether what is not ours can be work of a former gateway's: it was there from the first look on, and is surely no
        more than at any moment since. What came later is another client's, who is in sight then: nothing is done about that."""
        self._others_at_most = min(self._others_at_most, max(self.unexplained, 0))
        if self.unexplained <= 0:
            self.orphans_since = None
        elif self.orphans > self._others_at_most:
            self._others_at_most, self.orphans_since = 0, None  # somebody else calls
        elif self.orphans and self.orphans_since is None:
            self.orphans_since = now

    def orphaned_s(self, now: float) -> float:
        """How long there has been work that was there before us and that nobody else seems to wait for."""
        return -math.inf if self.orphans_since is None else now - self.orphans_since


def _still(left: PendingStop, slot: Slot) -> bool:
    """Whether what runs in the slot can be what was left in it."""
    return slot.busy and slot.tokens >= left.tokens and (not left.task or slot.task == left.task)
