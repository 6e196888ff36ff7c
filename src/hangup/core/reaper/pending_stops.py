"""Tracks calls that ended while their engine was working on them, until the engine itself shows that it has stopped.

    ended ──▶ held ──▶ released               a status requested after the call's end shows that the work is gone
                  └──▶ zombie ──▶ released    the work was still there when the grace period was over
                  └──▶ unknown                nothing could be learned within the grace period

A closed socket is not evidence, and neither is an abort that the engine answered with 200. Two things are evidence:

- Slots, or calls by name. A call that was pinned to a slot is gone when the slot is free or runs something else. An engine that
  lists its calls by our key says outright which ones it has. Both are exact.
- Counts. Work beyond our live calls, and beyond the calls that ended within the grace period, is work that nobody waits for.
  Counts are exact only in number: the name is that of the ended call that is most probably still running. They require an
  engine that serves nobody else (`shared = false`), and they allow for figures that are up to `lag_s` old.

Verification by counts compares the engine's figure with two different counts of ours: one to release, one to convict.

- To release, it compares with our calls *now* (`live`, less those that the engine may not have counted yet). If the engine runs
  no more than those, the ended calls are gone. A release that was premature, because the figure was stale, is revoked later
  (`_convict` looks at recently released calls as well).
- To convict, it compares with the *most* calls that we had at any moment that the figure may date from, and also subtracts
  every ended call that is still within its grace period plus `lag_s`. Only the remainder is certainly work for nobody.

Example: vLLM with a grace period of 2 s and figures up to 6 s old. We have 11 calls; the client of A hangs up at t=0 and 10
calls go on.

    t=1 s   the engine reports 10:  10 - 10 live = 0 beyond ours; A is released, verified
    t=1 s   the engine reports 11:  11 - 10 live = 1 beyond ours; A stays held, since it may stop within its grace period
    t=8 s   still 11:               11 - 10 at most = 1, less 1 for A itself (its 2 + 6 s are not over) = 0; no verdict
    t=9 s   still 11:               even a figure from t=3 s dates from after A's grace period, and at no moment since
                                    did we have more than 10; 11 - 10 = 1 is certain, and A is a zombie

A healthy engine that lags: of 12 clients, 2 hang up at t=4 s. The engine stops both calls at once but reports 12 until t=10 s.
At t=9 s that is 2 more than our 10 live calls, so nothing is released. But the figure may date from t=3 s, when 12 calls were
ours: 12 - 12, less 2 for the ended calls (their 2 + 6 s last until t=12 s), is below zero, so nothing is convicted. At t=10 s
the engine reports 10, and both are released. In general, an engine that serves only us, stops within the grace period, and
reports figures no older than `lag_s` can never report more than the most calls that were ours in that time, plus those that
ended in it or up to a grace period before it. So it is never convicted, however calls come and go.

A call without a first token may not be in the figures yet: vLLM reports only finished steps, and a prefill is a step that can
take seconds. Such a call gets `prefill_grace_s` more, and a figure counts as evidence for its release only once a step has
ended since, or once the figure must be newer than the call's end (`_would_count`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hangup.core.reaper.engine_status import EngineStatus, Slot

_STEP_S: Final = 0.25  # the time that a step may take, beyond reading the prompt
_DOUBTS_MAX: Final = 3  # for so many times the time of one doubt an ended call is held, because it cannot be judged
REMEMBERED: Final = 256  # ended calls to remember, because one of them may turn out to be still running


class StopState(StrEnum):
    """What is known about the work of an ended call, from best to worst."""

    VERIFIED = "verified"  # gone: the engine says so
    RESTARTED = "restarted"  # gone: the engine process was restarted
    UNVERIFIED = "unverified"  # nothing could be learned
    PENDING = "pending"  # nothing is known yet
    ZOMBIE = "zombie"  # still running


@dataclass(slots=True)
class StopAccount:
    """What the ledger has counted of an ended call. Only the accounting writes it."""

    tokens_recorded: int = 0  # tokens computed since its end that the ledger has already counted
    estimated: bool = False  # `tokens_recorded` is this call's share of a sum that belongs to several calls
    saved: tuple[int, float] = (0, 0.0)  # tokens and money that ending the call was thought to save


class PendingStop:
    """A call that ended, and whose engine has not confirmed yet that the work stopped.

    The facts about the call are complete from the start. `PendingStops` adds what the engine reports afterwards, and the
    `Ladder` the number of aborts. The creator owns what the call still holds, such as its slot.
    """

    __slots__ = (
        "abort_sent",
        "aborts",
        "account",
        "at",
        "call_id",
        "cause",
        "choices",
        "figures",
        "grace_s",
        "key",
        "member",
        "model",
        "reading_s",
        "released",
        "released_at",
        "silent",
        "slot",
        "task",
        "tenant",
        "tokens",
        "tokens_now",
        "zombie_since",
    )

    def __init__(
        self,
        call_id: str,
        at: float,
        *,
        key: str = "",
        slot: int | None = None,
        tokens: int = 0,
        choices: int = 1,
        reading_s: float | None = None,
        abort_sent: bool = False,
        tenant: str = "",
        model: str = "",
        cause: str = "",
        member: str = "",
    ) -> None:
        self.call_id = call_id
        self.key = key or call_id  # the name by which the engine knows the call
        self.slot = slot
        self.tokens = tokens  # when the call ended
        self.choices = choices
        self.at = at
        self.reading_s = reading_s  # expected time to read its prompt, if known
        self.abort_sent = abort_sent  # an abort by id went out when the call ended
        self.tenant = tenant
        self.model = model
        self.cause = cause  # how the call ended
        self.member = member  # the other gateway process that had the call; "": it was ours
        self.account = StopAccount()
        # Learned afterwards
        self.grace_s = 0.0
        self.silent = False  # the engine had sent nothing before the call ended
        self.figures: tuple[object, ...] | None = None  # the engine's first figures after the call ended
        self.tokens_now: int | None = None  # by the engine's own report
        self.task = ""
        self.aborts = 0  # further aborts
        self.zombie_since: float | None = None
        self.released: StopState | None = None  # the final state, once the call is no longer held
        self.released_at: float | None = None

    def __repr__(self) -> str:
        return f"<pending stop {self.call_id} slot={self.slot} {'zombie' if self.zombie_since is not None else 'held'}>"

    @property
    def due(self) -> float:
        """Return when the grace period is over."""
        return self.at + self.grace_s

    @property
    def state(self) -> StopState:
        return self.released or (StopState.PENDING if self.zombie_since is None else StopState.ZOMBIE)

    def release(self, how: StopState, now: float) -> None:
        """Record how and when the call was released."""
        self.released, self.released_at = how, now

    @property
    def tokens_since(self) -> int | None:
        """Return the tokens computed since the call ended; None if the engine does not report tokens per call."""
        return None if self.tokens_now is None else max(0, self.tokens_now - self.tokens)

    @property
    def tokens_after(self) -> int | None:
        """Return `tokens_since`, or this call's share where the engine reports only a sum; None when nothing is known."""
        return self.tokens_since if self.tokens_since is not None else self.account.tokens_recorded or None

    @property
    def tokens_exact(self) -> bool:
        """Return whether `tokens_after` is the engine's own number for this call, not an estimate."""
        return self.tokens_now is not None or not self.account.estimated


class PendingStops:
    """The ended calls of one backend that still await confirmation. Times are monotonic seconds."""

    def __init__(self, grace_s: float, lag_s: float = 0.0, *, prefill_grace_s: float = 0.0, shared: bool = False) -> None:
        self.grace_s = grace_s
        self.lag_s = lag_s  # the maximum age of the engine's figures
        self.prefill_grace_s = prefill_grace_s  # more grace for a call without a first token: engines finish a prefill
        self.shared = shared
        self.held: list[PendingStop] = []  # oldest first
        self.orphans = 0  # answers in the engine that belong neither to live calls nor to ended ones
        self.unexplained = 0  # answers in the engine, by its last figures, beyond those that our live calls wait for
        self.orphans_since: float | None = None  # since when; only work that predates us, while no other client shows
        self.frozen_since: float | None = None  # since when the engine has been busy without progress
        self._progress: tuple[object, ...] = ()
        self._slots: dict[int, tuple[Slot, float]] = {}  # each busy slot, and since when it has made no progress
        self._others_at_most = math.inf  # the least foreign work seen at any moment
        self._recent: deque[PendingStop] = deque(maxlen=REMEMBERED)  # released, verified or not; newest last
        self._peaks: deque[tuple[float, int]] = deque()  # (time, most answers that we waited for at once since the last look)
        self._doubted_until = -math.inf  # until then the engine may have work of ours that we do not know of

    def __repr__(self) -> str:
        return f"<pending stops held={len(self.held)} zombies={len(self.zombies)} orphans={self.orphans}>"

    @property
    def zombies(self) -> list[PendingStop]:
        return [stop for stop in self.held if stop.zombie_since is not None]

    def add(self, stop: PendingStop, *, first_token: bool = True) -> None:
        """Start to track a call that has ended and that its engine should stop."""
        stop.silent = not first_token
        stop.grace_s = self.grace_s + (0.0 if first_token else self.prefill_grace_s)
        self._hold_through_doubt(stop)
        self.held.append(stop)

    def doubt(self, now: float) -> None:
        """Convict nobody until all work that we may not know of must be gone, by the engine's figures: another process died
        with calls that it had not reported, or judged the engine until now. Ended calls are held until they can be judged."""
        self._doubted_until = max(self._doubted_until, now + self.grace_s + self.prefill_grace_s + self.lag_s)
        self.orphans, self.orphans_since = 0, None
        for stop in self.held:
            self._hold_through_doubt(stop)

    def _hold_through_doubt(self, stop: PendingStop) -> None:
        longest_s = _DOUBTS_MAX * (self.grace_s + self.prefill_grace_s + self.lag_s)  # processes may die again and again
        stop.grace_s = max(stop.grace_s, min(self._doubted_until - self.lag_s - stop.at, longest_s))

    def hand_over(self) -> list[PendingStop]:
        """Drop and return the ended calls, because another process judges the engine from now on."""
        given, self.held = self.held, []
        self._recent.clear()
        self._peaks.clear()
        self.orphans, self.unexplained, self.frozen_since, self.orphans_since = 0, 0, None, None
        self._others_at_most = math.inf
        return given

    def of_others(self) -> list[PendingStop]:
        """Return the ended calls of other processes, also those that were released lately."""
        return [stop for stop in (*self._recent, *self.held) if stop.member]

    def extend(self, seconds: float) -> None:
        """Give every ended call more time, because we stood still: the engine may have been told to stop only afterwards."""
        for stop in (*self.held, *self._recent):
            stop.grace_s += seconds

    def reset(self) -> list[PendingStop]:
        """Drop and return everything: the engine was restarted, so all its work is gone."""
        gone, self.held = self.held, []
        self._recent.clear()
        self._peaks.clear()
        self._slots.clear()
        self.orphans, self.unexplained, self.frozen_since, self._progress = 0, 0, None, ()
        self.orphans_since, self._others_at_most = None, 0.0
        return gone

    # Evidence

    def observe(
        self,
        status: EngineStatus,
        asked_at: float,
        now: float,
        live: int,
        peak: int,
        *,
        unseen: int = 0,
        pinned: bool = True,
        alone: bool = False,
    ) -> list[PendingStop]:
        """Evaluate the engine's answer to a status request sent at `asked_at`; return the calls that have stopped.

        `live` counts the answers that our calls wait for in this engine now, and `peak` the most since the last look. `unseen`
        counts those of `live` that the engine may not have counted yet: any work that it reports in their place is not theirs.
        `pinned` says that each of our calls has its own slot; `alone`, that others have an unknown number of calls there now.
        """
        shared = self.shared or alone
        self._watch_progress(status, now)
        self._peaks.append((now, max(live, peak)))
        while self._peaks[0][0] < asked_at - self.lag_s and len(self._peaks) > 1:
            self._peaks.popleft()
        most = max(count for _, count in self._peaks)
        if status.calls is not None:
            released = self._by_name(status.calls, status.cut, asked_at, now)
            self._count_others(status, now, max(live - unseen, 0), most, shared=shared)
            self._forget(released)
            return released
        exact = status.slots is not None
        released = self._by_slot([stop for stop in self.held if exact and stop.slot is not None], status, asked_at, now, pinned)
        if shared:
            self.unexplained = 0
        else:
            rest = [stop for stop in self.held if not exact or stop.slot is None]
            released += self._by_count(rest, status, asked_at, now, max(live - unseen, 0), most)
            self._watch_orphans(now)
        self._forget(released)
        return released

    def take_expired(self, now: float) -> list[PendingStop]:
        """Stop tracking, and return, the calls about which nothing was learned within their grace period: they are released
        unverified. A call stays while it may be part of the engine's unexplained work and could still be convicted."""
        in_doubt = self.unexplained - sum(stop.choices for stop in self.zombies)
        late = []
        for stop in self.held:
            if stop.zombie_since is not None or now <= stop.due + self.lag_s:
                continue
            if in_doubt > 0 and now <= stop.due + 2 * (self.lag_s + self.grace_s):
                in_doubt -= stop.choices
            else:
                late.append(stop)
        self._forget(late)
        return late

    def unanswered(self, asked_at: float, now: float) -> None:
        """Note that the engine is up but did not report what it runs. The place stays taken for longer than usual, because a
        large batch can keep an engine from answering; after that the call is a zombie."""
        for stop in self.held:
            late = now > stop.due + self.lag_s + self.prefill_grace_s
            if stop.at < asked_at and late and stop.zombie_since is None:
                stop.zombie_since = now

    def late(self, now: float) -> bool:
        """Return whether any call is held beyond its grace period, by the clock alone."""
        return any(now > stop.due for stop in self.held)

    def all_late(self, now: float) -> bool:
        """Return whether calls are held and all are beyond their grace period, so that no prefill of an ended call keeps the
        engine busy."""
        return bool(self.held) and all(now > stop.due + self.lag_s for stop in self.held)

    def next_due(self, now: float) -> float:
        """Return when the next grace period ends."""
        return min((stop.due for stop in self.held if stop.due >= now), default=math.inf)

    def overdue(self, now: float) -> bool:
        """Return whether any call is held beyond its grace period and `lag_s`, convicted or not."""
        return any(now > stop.due + self.lag_s for stop in self.held)

    def _forget(self, stops: Iterable[PendingStop]) -> None:
        gone = set(stops)
        if gone:  # a set, because ten thousand clients may hang up at once
            self._recent.extend(stop for stop in self.held if stop in gone)
            self.held = [stop for stop in self.held if stop not in gone]

    def _by_name(self, calls: dict[str, int], cut: Mapping[str, int], asked_at: float, now: float) -> list[PendingStop]:
        """Release the calls that the engine no longer lists. This is exact even when others use the engine."""
        released = []
        for stop in self.held:
            if asked_at <= stop.at:
                continue
            if stop.key not in calls:
                stop.tokens_now = cut.get(stop.key, stop.tokens_now)
                released.append(stop)
                continue
            stop.tokens_now = calls[stop.key]
            if stop.zombie_since is None and now > stop.due:
                stop.zombie_since = now
        return released

    def _count_others(self, status: EngineStatus, now: float, live: int, most: int, *, shared: bool) -> None:
        """Count the work that belongs neither to a live call nor to an ended one, from an engine that names its calls."""
        ended = sum(stop.key in (status.calls or ()) for stop in self.held)
        self.unexplained = 0 if shared else status.work - live - ended
        doubted = shared or now <= self._doubted_until
        self.orphans = 0 if doubted else max(0, status.work - most - ended)

    def _by_slot(
        self, stops: list[PendingStop], status: EngineStatus, asked_at: float, now: float, pinned: bool
    ) -> list[PendingStop]:
        released = []
        for stop in stops:
            assert stop.slot is not None
            slot = status.slot(stop.slot)
            if asked_at <= stop.at:
                continue
            if slot is None or not _still(stop, slot):
                released.append(stop)
                continue
            stop.task, stop.tokens_now = slot.task, slot.tokens
            if stop.zombie_since is None and now > stop.due:
                if pinned:
                    stop.zombie_since = now
                else:  # an unpinned call of ours may have taken this slot
                    stop.grace_s += self.grace_s
        return released

    def _by_count(
        self, stops: list[PendingStop], status: EngineStatus, asked_at: float, now: float, live: int, most: int
    ) -> list[PendingStop]:
        slots_taken = sum(stop.choices for stop in self.held if stop.slot is not None)
        beyond = self.unexplained = status.work - live - slots_taken
        for stop in stops:
            if stop.figures is None and asked_at > stop.at:
                stop.figures = status.progress
        released, rest = [], sum(stop.choices for stop in stops)
        # Keep the oldest longest: engines usually stop in much less than the grace period, so a call that has not is suspect.
        for stop in sorted(stops, key=lambda stop: (now - stop.at > stop.grace_s / 2, stop.at)):
            if self._would_count(stop, status, asked_at) and rest - stop.choices >= max(beyond, 0):
                released.append(stop)
                rest -= stop.choices
        gone = set(released)
        self._convict([stop for stop in stops if stop not in gone], status.work - most - slots_taken, now)
        return released

    def _would_count(self, stop: PendingStop, status: EngineStatus, asked_at: float) -> bool:
        """Return whether these counts would include the call if it still ran."""
        if asked_at <= stop.at:
            return False
        lag_s = self.lag_s if stop.reading_s is None else min(self.lag_s, 2 * stop.reading_s + _STEP_S)
        if not stop.silent or asked_at - lag_s >= stop.at:
            return True
        return status.progress != stop.figures  # a step has ended since then

    def _convict(self, stops: list[PendingStop], beyond: int, now: float) -> None:
        """Mark as zombies as many overdue calls as the figures prove to be running; count the rest as orphans.

        `beyond` is the work beyond the most that was ours at any time that the figures may date from. It may still include the
        ended calls that are within their grace period (`young`).
        """
        if now <= self._doubted_until:
            return
        young = sum(stop.choices for stop in (*self._recent, *stops) if now <= stop.due + self.lag_s)
        sure = beyond - young
        for stop in sorted(stops, key=lambda stop: stop.at):
            if now > stop.due + self.lag_s:
                if sure > 0 and stop.zombie_since is None:
                    stop.zombie_since = now
                sure -= stop.choices
        for stop in reversed(list(self._recent)):  # released because of a stale figure
            if sure <= 0 or stop.slot is not None or now > stop.due + 2 * (self.lag_s + self.grace_s):
                continue
            if now > stop.due + self.lag_s:
                self._recent.remove(stop)
                stop.zombie_since, stop.released, stop.released_at = now, None, None
                self.held.append(stop)
                sure -= stop.choices
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
        """Return how long the engine has been busy without progress, by its own figures. Some engines count nothing for
        embeddings, so the caller must also check whether any call received something."""
        return -math.inf if self.frozen_since is None else now - self.frozen_since

    def frozen_slot(self, now: float) -> tuple[int, float] | None:
        """Return the slot that has been busy without progress for longest, and for how long; other slots may be moving."""
        rows = ((id, now - since) for id, (_, since) in self._slots.items())
        return max(rows, key=lambda row: row[1], default=None)

    def _watch_orphans(self, now: float) -> None:
        """Track whether foreign work can be that of a previous gateway process: it was there from the first look on, and has
        never certainly grown since. Work that appears later belongs to another client; once there is one, foreign work is left
        alone."""
        if now <= self._doubted_until:
            return
        self._others_at_most = min(self._others_at_most, max(self.unexplained, 0))
        if self.unexplained <= 0:
            self.orphans_since = None
        elif self.orphans > self._others_at_most:
            self._others_at_most, self.orphans_since = 0.0, None  # another client uses this engine
        elif self.orphans and self.orphans_since is None:
            self.orphans_since = now

    def orphaned_s(self, now: float) -> float:
        """Return how long the engine has had work that predates us and that apparently nobody waits for."""
        return -math.inf if self.orphans_since is None else now - self.orphans_since


def _still(stop: PendingStop, slot: Slot) -> bool:
    """Return whether the work in the slot can be that of the ended call."""
    return slot.busy and slot.tokens >= stop.tokens and (not stop.task or slot.task == stop.task)
