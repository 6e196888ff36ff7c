"""The client of the call that runs a job's item: it collects the answer, and hangs up when the job is cancelled."""

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


LARGE_BYTES = 64 * 1024  # larger answers are stored unparsed: parsing would block the event loop
_LATE_S = 0.25  # a timer that fires later than this shows that the process was stopped


class ItemCall(Protocol):
    """The call that runs an item."""

    @property
    def call(self) -> Call: ...

    @property
    def answer_bytes_max(self) -> int: ...

    def end(self, reason: Reason, detail: str = "") -> None: ...

    def on_due(self) -> None: ...


class ItemClient:
    """A client, as a call sees it, that reads everything at once."""

    http11 = False  # so that payloads come without chunked framing
    will_close = False
    stalled = False
    peer = "job"

    def __init__(self, claim: Claim, tenant: str, loop: asyncio.AbstractEventLoop, owner: ItemOwner) -> None:
        self.claim = claim
        self.tenant = tenant
        self.failures = 0  # engine failures while they ran it
        self.attempts = 0  # calls made for it; makes each call id unique
        self.yields = 0  # how many of those made way for a live call
        self.body = bytearray()
        self.outline: Outline | None = None  # structure of a large answer
        self.assembler: object = None  # puts the events of a streamed answer together as they come, if its API has that
        self.cut_reason: Reason | None = None  # set if the answer was cut because of its size
        self.retry_after_s = 0.0  # from the last answer
        self.flow: ItemCall | None = None
        self.stopping: Reason | None = None  # why it is being cancelled, if it is
        self.listener: Callable[[bytes], None] | None = None  # receives the chunks of a stream
        self._loop = loop
        self._owner = owner
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._extended = False  # a deadline was extended once, because the process had been stopped

    def __repr__(self) -> str:
        return f"<item {self.claim.job_id} {self.claim.n}>"

    @property
    def single(self) -> bool:
        """Whether the item is the only one of its job."""
        return self.claim.single

    def hang_up(self, reason: Reason) -> None:
        """Cancel the item; if a call is running, `ItemOwner.item_ended` is called before this returns."""
        self.stopping = self.stopping or reason
        if self.flow is not None:
            self.flow.end(reason)

    # From the gateway

    def call_started(self) -> None:
        self._owner.item_started(self)

    def call_ended(self, call: Call, stop: PendingStop | None, entry: Entry) -> None:
        """Report the end of the call. Only `pending_stop`, work that the engine may not have stopped, is not released yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.flow = None
        self._owner.item_ended(self, call, stop, entry)

    # The client interface of a call

    def begin(self, head: bytes, *, chunked: bool) -> None:
        self.body.clear()
        self.outline = self.cut_reason = None
        match = _RETRY_AFTER.search(head)
        self.retry_after_s = float(match[1]) if match is not None else 0.0

    def send(self, payload: bytes) -> None:
        if self.cut_reason is not None:
            return
        self.body += payload
        if self.outline is not None:
            self.outline.feed(payload)
        elif len(self.body) >= LARGE_BYTES:
            self.outline = Outline()
            self.outline.feed(bytes(self.body))
        if self.listener is not None:
            self.listener(payload)
        if self.flow is not None and len(self.body) > self.flow.answer_bytes_max:
            self._cut()

    def _cut(self) -> None:
        """Replace an answer that is too large with an error: answers are held in memory, and a partial one is useless."""
        assert self.flow is not None
        self.cut_reason = reasons.ANSWER_BYTES
        error = {"message": self.cut_reason.message, "type": "server_error", "param": None, "code": self.cut_reason.code}
        self.body, self.outline = bytearray(orjson.dumps({"error": error})), None
        self.flow.end(self.cut_reason)

    def status(self, call: Call) -> int:
        """Return the status of the answer that is stored."""
        return call.status if self.cut_reason is None else self.cut_reason.status

    write = send

    def flush(self) -> None: ...

    def finish(self) -> None: ...

    def break_off(self) -> None: ...

    def drop(self) -> None: ...

    def close_after_this(self) -> None: ...

    def has_left(self) -> bool:
        return self.stopping is not None

    def set_due(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._on_timer) if due < math.inf else None

    def _on_timer(self) -> None:
        self._timer = None
        late = self._loop.time() - self._due > _LATE_S
        if late and not self._extended:  # the process was stopped: first read what the engine sent meanwhile
            self._extended = True
            self.set_due(self._loop.time() + _LATE_S)
            return
        self._extended = False
        if self.flow is not None:
            self.flow.on_due()


class ItemOwner(Protocol):
    """Owns items and follows their calls; implemented by `ItemRunner`."""

    def item_started(self, item: ItemClient) -> None: ...

    def item_ended(self, item: ItemClient, call: Call, stop: PendingStop | None, entry: Entry) -> None: ...
