"""The life of a call, as a state machine without I/O.

    RECEIVING ──▶ WAITING ──▶ SENT ──▶ ANSWERING ──▶ ENDED
        │            ▲          │
        │            └──────────┘ the backend failed before its first byte: another one; or it stands still behind its head
        └─ a call may end from every phase, and does so exactly once: `end()` answers the first time only.

The caller tells what happened and when (`now`, monotonic seconds), asks when the next limit falls due (`next_due`)
and which one has passed (`overdue`). `end()` says what has to be done with the engine and with the client; whoever
calls it must do it, and nothing of the call is held afterwards.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import NamedTuple

from hangup.core import reasons
from hangup.core.reaper.pending_stops import PendingStop, StopState
from hangup.core.reasons import Outcome, Reason


class Phase(Enum):
    RECEIVING = "receiving"
    WAITING = "waiting"
    SENT = "sent"
    ANSWERING = "answering"
    ENDED = "ended"


class Tell(Enum):
    """What the client is told when its call ends."""

    NOTHING = auto()  # it is not there any more
    STATUS = auto()  # nothing was sent yet: a whole error answer
    ERROR_EVENT = auto()  # the answer has begun: an error event if it is a stream, then break off the framing
    FINISH = auto()  # the answer ends as it should


class EngineAction(Enum):
    """What is done with the engine's work when the call ends."""

    NONE = auto()  # it has none of ours
    KEEP = auto()  # it finished: the connection can serve another call
    ABORT = auto()  # it must stop now


class Ending(NamedTuple):
    reason: Reason
    detail: str
    tell: Tell
    engine: EngineAction


class CallTimeLimits(NamedTuple):
    """The time limits of one call, in seconds; `inf` means none.

    `client_*` come from the client itself, and are told apart from our caps only in the reason of the end.
    """

    total_s: float = math.inf
    first_token_s: float = math.inf
    gap_s: float = math.inf
    queue_s: float = math.inf
    client_total_s: float = math.inf
    client_read_s: float = math.inf


UNLIMITED = CallTimeLimits()
_FATES = list(StopState)
_LET_GO = {
    None: True,
    StopState.VERIFIED: True,
    StopState.RESTARTED: True,
    StopState.UNVERIFIED: None,
    StopState.PENDING: None,
    StopState.ZOMBIE: False,
}


class Call:
    """One client's request and all the work that it causes."""

    __slots__ = (
        "answered_at",
        "answering_client",
        "attempts",
        "backend",
        "bytes_in",
        "client_has_all",
        "clock",
        "detail",
        "ended_at",
        "engine_finished",
        "engine_id",
        "first_token_at",
        "heard_at",
        "id",
        "leftovers",
        "model",
        "parent_id",
        "peer",
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
        self.span_id = ""  # set while it is traced
        self.parent_id = ""
        self.stream = False
        self.backend = ""
        self.engine_id = ""  # what that engine calls it, where that is not its id
        self.slot: int | None = None  # its place in the engine's batch, where that is known
        self.attempts = 0
        self.status = 0
        self.bytes_in = 0
        self.tokens_in: int | None = None
        self.tokens_out = 0
        self.tokens_exact = False  # told by the engine, not counted by us
        self.clock = UNLIMITED
        self.phase = Phase.RECEIVING
        self.answering_client = False
        self.engine_finished = False
        self.client_has_all = False  # a whole answer was written, whatever the reason of the end
        self.reason: Reason | None = None
        self.detail = ""
        self.leftovers: tuple[PendingStop, ...] = ()  # what engines were told to stop, attempt by attempt
        self.started_at = now
        self.received_at: float | None = None
        self.waiting_since = now
        self.sent_at: float | None = None
        self.answered_at: float | None = None
        self.first_token_at: float | None = None
        self.progress_at = now
        self.heard_at = now  # when the client last heard something, before the first token: it is told that it must wait
        self.ended_at: float | None = None

    def __repr__(self) -> str:
        return f"<call {self.id} {self.route or '?'} {self.phase.value} tokens={self.tokens_out}>"

    @property
    def ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def tokens_after_end(self) -> int | None:
        """Tokens that the engine computed after the call's end; None as long as nobody has told."""
        if self.engine_finished or self.sent_at is None:
            return 0
        told = [left.tokens_after for left in self.leftovers]
        known = [tokens for tokens in told if tokens is not None]
        return sum(known) if known else None

    @property
    def moved_at(self) -> float | None:
        """When something last came of it in its engine: a token, or a whole answer. The head of a stream is no sign of life."""
        if self.first_token_at is not None:
            return self.progress_at
        return self.answered_at if self.engine_finished else None

    @property
    def fate(self) -> StopState | None:
        """The worst that is known of what it left behind; None when there is nothing: its engine finished, or never had it."""
        return max((left.fate for left in self.leftovers), key=_FATES.index, default=None)

    @property
    def engine_let_go(self) -> bool | None:
        """Whether the engine is known to be done with it; None when nobody has told."""
        return _LET_GO[self.fate]

    @property
    def outcome(self) -> Outcome | None:
        return self.reason.outcome if self.reason else None

    # What happened, in the order of a good life

    def received(self, now: float) -> None:
        """The whole request is here; now it waits for a backend."""
        assert self.phase is Phase.RECEIVING, self
        self.phase = Phase.WAITING
        self.received_at = self.waiting_since = now

    def sent(self, backend: str, now: float) -> None:
        """A backend has the request and nothing came back yet."""
        assert self.phase is Phase.WAITING, self
        self.phase = Phase.SENT
        self.backend, self.slot = backend, None
        self.attempts += 1
        self.sent_at = self.progress_at = now

    def fell_back(self, now: float) -> None:
        """That backend failed before its first byte, or behind its head: nothing has come of the call."""
        assert self.phase in (Phase.SENT, Phase.ANSWERING) and self.first_token_at is None, self
        self.phase = Phase.WAITING
        self.answered_at = self.tokens_in = None
        self.waiting_since = now

    def answered(self, now: float) -> None:
        """The engine's first byte came: from here on nothing is replayed."""
        assert self.phase is Phase.SENT, self
        self.phase = Phase.ANSWERING
        self.answered_at = now

    def progressed(self, tokens: int, now: float) -> None:
        """The engine sent something that counts (the pump does this by hand for most chunks)."""
        if self.first_token_at is None:
            self.first_token_at = now
        self.progress_at = now
        self.tokens_out += tokens

    def client_heard(self, now: float) -> None:
        """The client was sent a sign of life."""
        self.heard_at = now

    def client_answer_began(self, status: int) -> None:
        """The client has the answer's head: its status can no longer change."""
        self.answering_client = True
        self.status = status

    # Time

    def next_due(self) -> float:
        """When the next limit falls due."""
        total_s, first_token_s, gap_s, queue_s, client_total_s, client_read_s = self.clock
        phase, start = self.phase, self.started_at
        due = start + (total_s if total_s < client_total_s else client_total_s)
        if phase is Phase.RECEIVING:
            return due
        if self.first_token_at is not None:
            return min(due, self.progress_at + gap_s, self.progress_at + client_read_s)
        wait = self.waiting_since + queue_s if phase is Phase.WAITING else self.progress_at + first_token_s
        return min(due, wait, self.heard_at + client_read_s)

    def overdue(self, now: float) -> Reason | None:
        """The limit that has passed at `now`, if any; the client's own comes first."""
        clock = self.clock
        if self.ended:
            return None
        if now >= self.started_at + clock.client_total_s:
            return reasons.CLIENT_DEADLINE
        if self.phase is not Phase.RECEIVING and now >= self._silence_began() + clock.client_read_s:
            return reasons.CLIENT_DEADLINE
        if now >= self.started_at + clock.total_s:
            return reasons.TOTAL_TIME
        if self.phase is Phase.WAITING and now >= self.waiting_since + clock.queue_s:
            return reasons.QUEUE_TIME
        if self.phase in (Phase.SENT, Phase.ANSWERING):
            if self.first_token_at is None:
                return reasons.FIRST_TOKEN_TIME if now >= self.progress_at + clock.first_token_s else None
            return reasons.GAP_TIME if now >= self.progress_at + clock.gap_s else None
        return None

    def _silence_began(self) -> float:
        """Since when the client has heard nothing: its read timeout runs from here."""
        return self.heard_at if self.first_token_at is None else self.progress_at

    # The end

    def end(self, reason: Reason, now: float, detail: str = "") -> Ending | None:
        """Ends the call, once: the first caller gets what is to be done, any later one gets None."""
        if self.ended:
            return None
        engine = EngineAction.NONE
        if self.phase in (Phase.SENT, Phase.ANSWERING):
            engine = EngineAction.KEEP if self.engine_finished else EngineAction.ABORT
        tell = self._tell(reason)
        if tell is Tell.STATUS or (not self.status and tell is Tell.NOTHING):
            self.status = reason.status
        self.phase = Phase.ENDED
        self.reason = reason
        self.detail = detail
        self.ended_at = now
        return Ending(reason, detail, tell, engine)

    def _tell(self, reason: Reason) -> Tell:
        if reason.outcome is Outcome.CLIENT_GONE:
            return Tell.NOTHING
        if reason.outcome is Outcome.COMPLETED or reason is reasons.OUTPUT_TOKENS or self.client_has_all:
            return Tell.FINISH
        return Tell.ERROR_EVENT if self.answering_client else Tell.STATUS
