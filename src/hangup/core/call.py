"""`Call`: the life of a call, as a state machine without I/O.

    RECEIVING ──▶ WAITING ──▶ SENT ──▶ ANSWERING ──▶ ENDED
        │            ▲          │
        │            └──────────┘ the backend failed before its first byte, or sent its head and then stood still: try another
        └─ a call may end from every phase, and does so exactly once: only the first `end()` returns an `Ending`.

The caller reports each event with its time (`now`, monotonic seconds), asks when the next limit is due (`next_due`) and which
one has passed (`overdue`). `end()` returns what to do with the engine and what to tell the client; its caller must do both, and
the call holds no resources afterwards.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from hangup.core import reasons
from hangup.core.reaper.pending_stops import PendingStop, StopState
from hangup.core.reasons import Outcome, Reason


class Phase(Enum):
    """The phases of a call."""

    RECEIVING = "receiving"
    WAITING = "waiting"
    SENT = "sent"
    ANSWERING = "answering"
    ENDED = "ended"


class Tell(Enum):
    """What to tell the client when its call ends."""

    NOTHING = auto()  # it has hung up
    STATUS = auto()  # nothing was sent yet: send a whole error answer
    ERROR_EVENT = auto()  # the answer has begun: send an error event if it is a stream, then break off the framing
    FINISH = auto()  # end the answer properly


class EngineAction(Enum):
    """What to do with the engine's work when the call ends."""

    NONE = auto()  # the engine has no work of this call
    KEEP = auto()  # it has finished: the connection can serve another call
    ABORT = auto()  # it must stop now


class Ending(NamedTuple):
    """How a call ended, and what to do about it."""

    reason: Reason
    detail: str
    tell: Tell
    engine: EngineAction


class CallTimeLimits(NamedTuple):
    """The time limits of one call, in seconds; `inf` means none.

    `client_*` come from the client itself; only the reason of the end tells them apart from our limits.
    """

    total_s: float = math.inf
    first_token_s: float = math.inf
    gap_s: float = math.inf
    queue_s: float = math.inf
    client_total_s: float = math.inf
    client_read_s: float = math.inf


UNLIMITED: Final = CallTimeLimits()
DETAIL_CHARS_MAX: Final = 2000  # of `detail`: it may quote an engine, and calls are kept after their end
_STATES: Final = list(StopState)
# As constants of the module, because Python 3.11 takes as long for a member of an enum as for a function call.
RECEIVING: Final = Phase.RECEIVING
WAITING: Final = Phase.WAITING
SENT: Final = Phase.SENT
ANSWERING: Final = Phase.ANSWERING
ENDED: Final = Phase.ENDED
_NOTHING: Final = Tell.NOTHING
_STATUS: Final = Tell.STATUS
_ERROR_EVENT: Final = Tell.ERROR_EVENT
FINISH: Final = Tell.FINISH
_NO_ENGINE: Final = EngineAction.NONE
_KEEP: Final = EngineAction.KEEP
ABORT: Final = EngineAction.ABORT
_COMPLETED: Final = Outcome.COMPLETED
_CLIENT_GONE: Final = Outcome.CLIENT_GONE
_STOPPED: Final = {
    None: True,
    StopState.VERIFIED: True,
    StopState.RESTARTED: True,
    StopState.UNVERIFIED: None,
    StopState.PENDING: None,
    StopState.ZOMBIE: False,
}


DELIVERED: Final = Ending(reasons.COMPLETED, "", FINISH, _KEEP)  # how most calls end


class Call:
    """One client's request and all the work that it causes."""

    __slots__ = (
        "answered_at",
        "answering_client",
        "attempts",
        "backend",
        "bytes_in",
        "client_has_all",
        "client_sent_at",
        "clock",
        "detail",
        "ended_at",
        "engine_finished",
        "engine_id",
        "first_token_at",
        "id",
        "model",
        "parent_id",
        "peer",
        "pending_stops",
        "phase",
        "progress_at",
        "reason",
        "received_at",
        "route",
        "sent_at",
        "slot",
        "span_id",
        "started_at",
        "status",
        "stream",
        "tenant",
        "tokens_exact",
        "tokens_in",
        "tokens_out",
        "trace_attributes",
        "trace_id",
        "waiting_since",
    )

    def __init__(self, id: str, now: float, peer: str = "") -> None:
        self.id = id
        self.peer = peer
        self.route = ""
        self.tenant = ""
        self.model = ""
        self.trace_id = ""
        self.span_id = ""  # set if the call is traced
        self.parent_id = ""
        self.trace_attributes: dict[str, Any] | None = None  # what its trace shows beyond the other fields
        self.stream = False
        self.backend = ""
        self.engine_id = ""  # the engine's name for the call, if that is not `id`
        self.slot: int | None = None  # its slot in the engine's batch, if known
        self.attempts = 0
        self.status = 0
        self.bytes_in = 0
        self.tokens_in: int | None = None
        self.tokens_out = 0
        self.tokens_exact = False  # reported by the engine, not counted by us
        self.clock = UNLIMITED
        self.phase = RECEIVING
        self.answering_client = False
        self.engine_finished = False
        self.client_has_all = False  # a whole answer was written, whatever the reason of the end
        self.reason: Reason | None = None
        self.detail = ""
        self.pending_stops: tuple[PendingStop, ...] = ()  # work that engines had to stop, one per attempt
        self.started_at = now
        self.received_at: float | None = None
        self.waiting_since = now
        self.sent_at: float | None = None
        self.answered_at: float | None = None
        self.first_token_at: float | None = None
        self.progress_at = now
        self.client_sent_at = now  # when the client was last sent a sign of life, before the first token
        self.ended_at: float | None = None

    def __repr__(self) -> str:
        return f"<call {self.id} {self.route or '?'} {self.phase.value} tokens={self.tokens_out}>"

    @property
    def ended(self) -> bool:
        return self.phase is ENDED

    @property
    def tokens_after_end(self) -> int | None:
        """Return the tokens that the engine computed after the call ended; None while that is unknown."""
        if self.engine_finished or self.sent_at is None:
            return 0
        reported = [stop.tokens_after for stop in self.pending_stops]
        known = [tokens for tokens in reported if tokens is not None]
        return sum(known) if known else None

    @property
    def moved_at(self) -> float | None:
        """Return when the engine last made progress on the call: a token, or a whole answer. A stream's head does not count."""
        if self.first_token_at is not None:
            return self.progress_at
        return self.answered_at if self.engine_finished else None

    @property
    def stop_state(self) -> StopState | None:
        """Return the worst state of the work that the call's engines had to stop; None if there was none to stop, because the
        engine had finished or never had the call."""
        if not self.pending_stops:
            return None
        return max((stop.state for stop in self.pending_stops), key=_STATES.index)

    @property
    def engine_stopped(self) -> bool | None:
        """Return whether the engine is known to be done with the call; None while that is unknown."""
        return _STOPPED[self.stop_state]

    @property
    def outcome(self) -> Outcome | None:
        return self.reason.outcome if self.reason else None

    # Events, in their usual order

    def received(self, now: float) -> None:
        """Note that the whole request has arrived; the call now waits for a backend."""
        assert self.phase is RECEIVING, self
        self.phase = WAITING
        self.received_at = self.waiting_since = now

    def sent(self, backend: str, now: float) -> None:
        """Note that a backend has the request, and nothing has come back yet."""
        assert self.phase is WAITING, self
        self.phase = SENT
        self.backend, self.slot = backend, None
        self.attempts += 1
        self.sent_at = self.progress_at = now

    def fell_back(self, now: float) -> None:
        """Note that the backend failed before its first byte, or after its head, without any progress on the call."""
        assert self.phase in (SENT, ANSWERING) and self.first_token_at is None, self
        self.phase = WAITING
        self.answered_at = self.tokens_in = None
        self.waiting_since = now

    def answered(self, now: float) -> None:
        """Note the engine's first byte. From here on the call is not replayed, unless it falls back before its first token."""
        assert self.phase is SENT, self
        self.phase = ANSWERING
        self.answered_at = now

    def progressed(self, tokens: int, now: float) -> None:
        """Note that the engine sent something that counts (the pump does the same inline for most chunks)."""
        if self.first_token_at is None:
            self.first_token_at = now
        self.progress_at = now
        self.tokens_out += tokens

    def client_was_sent(self, now: float) -> None:
        """Note that the client was sent a sign of life."""
        self.client_sent_at = now

    def client_answer_began(self, status: int) -> None:
        """Note that the client has the answer's head: its status can no longer change."""
        self.answering_client = True
        self.status = status

    # Time

    def next_due(self) -> float:
        """Return when the next limit is due."""
        total_s, first_token_s, gap_s, queue_s, client_total_s, client_read_s = self.clock
        phase, start = self.phase, self.started_at
        due = start + (total_s if total_s < client_total_s else client_total_s)
        if phase is RECEIVING:
            return due
        if self.first_token_at is not None:
            return min(due, self.progress_at + gap_s, self.progress_at + client_read_s)
        wait = self.waiting_since + queue_s if phase is WAITING else self.progress_at + first_token_s
        return min(due, wait, self.client_sent_at + client_read_s)

    def overdue(self, now: float) -> Reason | None:
        """Return the limit that has passed at `now`, if any; the client's own limits come first."""
        clock = self.clock
        if self.ended:
            return None
        if now >= self.started_at + clock.client_total_s:
            return reasons.CLIENT_DEADLINE
        if self.phase is not RECEIVING and now >= self._silence_began() + clock.client_read_s:
            return reasons.CLIENT_DEADLINE
        if now >= self.started_at + clock.total_s:
            return reasons.TOTAL_TIME
        if self.phase is WAITING and now >= self.waiting_since + clock.queue_s:
            return reasons.QUEUE_TIME
        if self.phase in (SENT, ANSWERING):
            if self.first_token_at is None:
                return reasons.FIRST_TOKEN_TIME if now >= self.progress_at + clock.first_token_s else None
            return reasons.GAP_TIME if now >= self.progress_at + clock.gap_s else None
        return None

    def _silence_began(self) -> float:
        """Return since when the client has received nothing: its read timeout runs from here."""
        return self.client_sent_at if self.first_token_at is None else self.progress_at

    # End

    def end(self, reason: Reason, now: float, detail: str = "") -> Ending | None:
        """End the call once: the first caller gets what to do, any later one gets None."""
        if self.phase is ENDED:
            return None
        if detail:
            detail = detail[:DETAIL_CHARS_MAX]
        engine = _NO_ENGINE
        if self.phase in (SENT, ANSWERING):
            engine = _KEEP if self.engine_finished else ABORT
        tell = self._what_to_tell(reason)
        if tell is _STATUS or (not self.status and tell is _NOTHING):
            self.status = reason.status
        if self.status >= 400 and reason is reasons.COMPLETED and self.sent_at is not None:
            reason = reasons.ENGINE_REFUSED  # the client has the whole answer, but it is an error
        self.phase = ENDED
        self.reason = reason
        self.detail = detail
        self.ended_at = now
        delivered = reason is reasons.COMPLETED and engine is _KEEP and not detail
        return DELIVERED if delivered else Ending(reason, detail, tell, engine)

    def _what_to_tell(self, reason: Reason) -> Tell:
        if reason.outcome is _CLIENT_GONE:
            return _NOTHING
        if reason.outcome is _COMPLETED or reason is reasons.OUTPUT_TOKENS or self.client_has_all:
            return FINISH
        return _ERROR_EVENT if self.answering_client else _STATUS
