"""Sends the spans of each ended call to an OpenTelemetry collector.

Without a collector there is no tracer, and calls cost nothing. With one, a call costs an id at its start and an append at its
end; a thread builds the spans and sends them in batches. A call whose engine had to be stopped is kept until the engine
confirms, for `trace_release_s` at most. Traces that the collector does not accept in time are dropped and counted. Which traces
are sent is decided at the end of the call (`keeps`): all that are strange, and a share of the others.
"""

from __future__ import annotations

import math
import re
import secrets
import threading
import time
from collections import deque

from hangup.core.call import Call
from hangup.core.spans import keeps, settled, spans
from hangup.gateway.otlp import Exporter
from hangup.tasks import TASKS

# W3C's trace context; later versions may append fields after the flags.
TRACEPARENT = re.compile(
    rb"(?:(?P<today>00)|(?!00|ff)[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<parent>[0-9a-f]{16})"
    rb"-(?P<flags>[0-9a-f]{2})(?(today)|(?:-.*)?)"
)
_SAMPLED = 1
_BATCH_MAX = 500  # calls in one request to the collector
_FLUSH_S = 1.0


class Tracer:
    def __init__(
        self,
        exporter: Exporter,
        *,
        calls_max: int,
        release_s: float,
        close_s: float,
        share: float = 1.0,
        slow_s: float = math.inf,
    ) -> None:
        self.dropped = 0
        self._share = share
        self._slow_s = slow_s
        self.exporter = exporter  # a reload replaces it as a whole
        self._calls_max = calls_max
        self._release_s = release_s
        self._close_s = close_s
        self._calls: deque[Call] = deque()
        self._unsettled: list[Call] = []  # used by the thread only
        self._offset_s = time.time() - time.monotonic()
        self._closing = threading.Event()
        self._thread = TASKS.thread("traces", self._run)

    def begin(self, call: Call, traceparent: bytes | None, method: str, path: str) -> None:
        """Join the client's trace, or begin one. A trace that the client does not sample is ignored."""
        match = TRACEPARENT.fullmatch(traceparent) if traceparent is not None else None
        if match is not None:
            if not int(match["flags"], 16) & _SAMPLED:
                return
            call.parent_id = match["parent"].decode("ascii")
        else:
            call.trace_id = secrets.token_hex(16)
        call.span_id = secrets.token_hex(8)
        call.trace_attributes = {"http.request.method": method, "url.path": path}

    def end(self, call: Call) -> None:
        """Send the call's trace, or forget that it was traced: then nothing else refers to it."""
        if not call.span_id:
            return
        if not keeps(call, self._share, self._slow_s):
            call.span_id = ""
        elif len(self._calls) + len(self._unsettled) >= self._calls_max:
            self.dropped += 1
        else:
            self._calls.append(call)

    def close(self, within_s: float = math.inf) -> None:
        """Send one last batch, within this time and the exporter's own."""
        self._closing.set()
        self._thread.join(timeout=min(within_s, self._close_s))

    def _run(self) -> None:
        while not self._closing.wait(_FLUSH_S):
            self._send_all(time.monotonic() - self._release_s)
        self._send_all(time.monotonic())

    def _send_all(self, ended_before: float) -> None:
        """Send all settled calls, and those that ended before the given time, settled or not."""
        taken = self._unsettled + [self._calls.popleft() for _ in range(len(self._calls))]
        ready: list[Call] = []
        self._unsettled = []
        for call in taken:
            known = settled(call) or (call.ended_at or 0.0) <= ended_before
            (ready if known else self._unsettled).append(call)
        for at in range(0, len(ready), _BATCH_MAX):
            batch = ready[at : at + _BATCH_MAX]
            try:
                with TASKS.working("traces"):
                    self.exporter.send([span for call in batch for span in spans(call, self._nanoseconds, _new_id)])
            except Exception:  # a collector may answer anything; the thread must survive it
                self.dropped += len(batch)

    def _nanoseconds(self, moment: float) -> int:
        return int((moment + self._offset_s) * 1e9)


def _new_id() -> str:
    return secrets.token_hex(8)
