"""The client of a job's item: takes the answer in, and hangs up when nobody cares for it any more."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from typing import Protocol

import orjson

from hangup.core import reasons
from hangup.core.account import Entry
from hangup.core.call import Call
from hangup.core.reaper import PendingStop
from hangup.core.reasons import Reason
from hangup.gateway.http.jsonbody import Outline
from hangup.gateway.store.jobs import Claim

_RETRY_AFTER = re.compile(rb"\r\nretry-after: *([0-9]{1,5}) *\r\n", re.IGNORECASE)


LARGE_BYTES = 64 * 1024  # an answer from here on is not parsed: it holds up everybody, and it is written on as it is
_LATE_S = 0.25  # a timer that is later than this says that the process stood still


class ItemCall(Protocol):
    """The call that runs an errand."""

    @property
    def call(self) -> Call: ...

    @property
    def answer_bytes_max(self) -> int: ...

    def end(self, reason: Reason, detail: str = "") -> None: ...

    def on_due(self) -> None: ...


class ItemClient:
    """To an exchange it is a client that reads all it is sent at once."""

    http11 = False  # so that payloads come without framing
    will_close = False
    stalled = False
    peer = "job"

    def __init__(self, claim: Claim, tenant: str, loop: asyncio.AbstractEventLoop, owner: ItemOwner) -> None:
        self.claim = claim
        self.tenant = tenant
        self.failures = 0  # of engines that had it
        self.attempts = 0  # calls made for it, so that each has a name of its own
        self.yields = 0  # of those, how many made way for a live call
        self.body = bytearray()
        self.outline: Outline | None = None  # of a large answer
        self.cut_for: Reason | None = None  # why there is no more of it, if that is its size
        self.retry_after_s = 0.0  # as the last answer has it
        self.exchange: ItemCall | None = None
        self.stopping: Reason | None = None  # why it is to end, if it is
        self.listener: Callable[[bytes], None] | None = None  # gets the pieces of a stream as they come
        self._loop = loop
        self._owner = owner
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._excused = False  # its time was up, and it was us who had stood still

    def __repr__(self) -> str:
        return f"<errand {self.claim.job} {self.claim.n}>"

    @property
    def single(self) -> bool:
        """All of its job."""
        return self.claim.single

    def hang_up(self, reason: Reason) -> None:
        """Nobody wants it any more; `ItemOwner.errand_over` follows at once, if a call is under way."""
        self.stopping = self.stopping or reason
        if self.exchange is not None:
            self.exchange.end(reason)

    # From the gateway

    def started(self) -> None:
        self._owner.errand_started(self)

    def over(self, call: Call, leftover: PendingStop | None, entry: Entry) -> None:
        """The call has ended, and everything it held is let go of but for what is left in the engine."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.exchange = None
        self._owner.errand_over(self, call, leftover, entry)

    # A client's part

    def begin(self, head: bytes, *, chunked: bool) -> None:
        self.body.clear()
        self.outline = self.cut_for = None
        after = _RETRY_AFTER.search(head)
        self.retry_after_s = float(after[1]) if after is not None else 0.0

    def send(self, payload: bytes) -> None:
        if self.cut_for is not None:
            return
        self.body += payload
        if self.outline is not None:
            self.outline.feed(payload)
        elif len(self.body) >= LARGE_BYTES:
            self.outline = Outline()
            self.outline.feed(bytes(self.body))
        if self.listener is not None:
            self.listener(payload)
        if self.exchange is not None and len(self.body) > self.exchange.answer_bytes_max:
            self._cut()

    def _cut(self) -> None:
        """It is held here until it is whole, so it has a bound; what came of it says nothing."""
        assert self.exchange is not None
        self.cut_for = reasons.ANSWER_BYTES
        error = {"message": self.cut_for.message, "type": "server_error", "param": None, "code": self.cut_for.code}
        self.body, self.outline = bytearray(orjson.dumps({"error": error})), None
        self.exchange.end(self.cut_for)

    def status(self, call: Call) -> int:
        """That of the answer that is kept."""
        return call.status if self.cut_for is None else self.cut_for.status

    write = send

    def flush(self) -> None: ...

    def finish(self) -> None: ...

    def break_off(self) -> None: ...

    def drop(self) -> None: ...

    def close_after_this(self) -> None: ...

    def left(self) -> bool:
        return self.stopping is not None

    def set_due(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._on_timer) if due < math.inf else None

    def _on_timer(self) -> None:
        self._timer = None
        late = self._loop.time() - self._due > _LATE_S
        if late and not self._excused:  # we stood still: what the engine sent meanwhile is read first
            self._excused = True
            self.set_due(self._loop.time() + _LATE_S)
            return
        self._excused = False
        if self.exchange is not None:
            self.exchange.on_due()


class ItemOwner(Protocol):
    """Who sends errands."""

    def errand_started(self, errand: ItemClient) -> None: ...

    def errand_over(self, errand: ItemClient, call: Call, leftover: PendingStop | None, entry: Entry) -> None: ...
