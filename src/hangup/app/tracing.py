"""Traces: a call's spans, sent to an OpenTelemetry collector as OTLP/HTTP in JSON.

Off, there is no tracer and nothing is done. On, a call costs an id at its start and an append at its end; a thread makes the
spans and sends them in batches. What the collector does not take in time is dropped, and counted.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
import urllib.request
from collections import deque

import orjson

from hangup import __version__
from hangup.core.call import Call
from hangup.core.spans import spans

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_BATCH_MAX = 500
_FLUSH_S = 1.0
_SEND_S = 5.0


class Tracer:
    def __init__(self, endpoint: str, calls_max: int) -> None:
        self.dropped = 0
        self._url = endpoint.rstrip("/") + "/v1/traces"
        self._calls_max = calls_max
        self._calls: deque[Call] = deque()
        self._offset_s = time.time() - time.monotonic()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hangup-traces", daemon=True)
        self._thread.start()

    def begin(self, call: Call, traceparent: bytes | None) -> None:
        """Joins the client's trace, or begins one; a trace that its beginner does not sample is left alone."""
        match = _TRACEPARENT.fullmatch(traceparent) if traceparent is not None else None
        if match is not None:
            if not int(match[3], 16) & 1:
                return
            call.parent_id = match[2].decode("ascii")
        else:
            call.trace_id = secrets.token_hex(16)
        call.span_id = secrets.token_hex(8)

    def end(self, call: Call) -> None:
        if not call.span_id:
            return
        if len(self._calls) >= self._calls_max:
            self.dropped += 1
        else:
            self._calls.append(call)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=_SEND_S + 1)

    def _run(self) -> None:
        while not self._closing.wait(_FLUSH_S):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while self._calls:
            batch = [self._calls.popleft() for _ in range(min(len(self._calls), _BATCH_MAX))]
            try:
                self._send(batch)
            except (OSError, ValueError):
                self.dropped += len(batch)

    def _send(self, batch: list[Call]) -> None:
        made = [span for call in batch for span in spans(call, self._nanoseconds, lambda: secrets.token_hex(8))]
        service = [{"key": "service.name", "value": {"stringValue": "hangup"}}]
        scope = {"scope": {"name": "hangup", "version": __version__}, "spans": made}
        body = orjson.dumps({"resourceSpans": [{"resource": {"attributes": service}, "scopeSpans": [scope]}]})
        request = urllib.request.Request(self._url, body, {"content-type": "application/json"})  # noqa: S310 - configured
        with urllib.request.urlopen(request, timeout=_SEND_S):  # noqa: S310
            pass

    def _nanoseconds(self, moment: float) -> int:
        return int((moment + self._offset_s) * 1e9)
