"""The end of a call, reported once: to the log and to the application's `on_end`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from hangup.core.call import Call
from hangup.core.reasons import Outcome
from hangup.errors import HangupError

log = logging.getLogger("hangup")
_WARNED = (Outcome.ENGINE_FAILED, Outcome.CAP, Outcome.KILLED)  # the client did not get the whole answer, and waited for it


@dataclass(frozen=True, slots=True)
class Ended:
    """How one call ended, in the same words as the gateway's log."""

    id: str
    outcome: Outcome
    cause: str
    detail: str
    status: int
    tokens_out: int
    first_token_s: float | None
    total_s: float
    zombie: str = ""  # the task or thread that did not stop within the grace period

    def __str__(self) -> str:
        first = "-" if self.first_token_s is None else f"{self.first_token_s:.3f}"
        text = f"call {self.id} {self.outcome.value} ({self.cause}) tokens={self.tokens_out} first_token_s={first}"
        text += f" total_s={self.total_s:.3f}"
        return text + (f" zombie={self.zombie}" if self.zombie else "") + (f" {self.detail}" if self.detail else "")


OnEnd = Callable[[Ended], object]


class CallEnded(HangupError):
    """A call ended before its answer; `ended` says how. `hangup.run` raises it as an error that the framework can answer."""

    def __init__(self, ended: Ended, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.ended = ended
        self.retry_after_s = retry_after_s

    @property
    def answer_headers(self) -> dict[str, str]:
        """Return the headers of the error response, if one can still be sent."""
        retry_headers = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        return {"x-hangup-reason": self.ended.cause, **retry_headers}


def describe(call: Call, zombie: str = "") -> Ended:
    assert call.reason is not None and call.ended_at is not None
    first_token_s = None if call.first_token_at is None else call.first_token_at - call.started_at
    return Ended(
        call.id,
        call.reason.outcome,
        call.reason.code,
        call.detail,
        call.status or call.reason.status,
        call.tokens_out,
        first_token_s,
        call.ended_at - call.started_at,
        zombie,
    )


def report_end(ended: Ended, on_end: OnEnd | None) -> None:
    """Write the log line and call `on_end`; an exception from `on_end` is logged and not raised."""
    log.log(logging.WARNING if ended.zombie or ended.outcome in _WARNED else logging.INFO, "%s", ended)
    if on_end is not None:
        try:
            on_end(ended)
        except Exception:
            log.exception("the on_end callback failed")
