"""The log: one JSON line per call at its end, and the gateway's own few words. Never a prompt, never a key.

Lines are written by a thread of their own, so that a slow reader of the log cannot hold up a stream; what it cannot
take in time is dropped, and counted.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from hangup.core.call import Call
from hangup.tasks import TASKS

_FLUSH_S = 0.05


class Log:
    def __init__(self, target: str, lines_max: int) -> None:
        self.dropped = 0
        self._lines: deque[bytes] = deque()
        self.lines_max = lines_max
        self._wake = threading.Event()
        self._awake = False  # the same, but cheaper to look at
        self._closing = False
        self._torn = False  # what was written last is half a line
        self._out: BinaryIO | None = None
        self._thread: threading.Thread | None = None
        if target != "none":
            self._out = sys.stdout.buffer if target == "-" else Path(target).open("ab", buffering=0)
            self._thread = TASKS.thread("log", self._write_lines)

    def record(self, call: Call) -> dict[str, Any] | None:
        """The line of a call that has ended; None where no log is kept."""
        return call_record(call) if self._out is not None else None

    def write(self, record: dict[str, Any]) -> None:
        if self._out is not None:
            self._put(record)

    def event(self, event: str, **fields: object) -> None:
        """Something about the gateway itself: a backend went down, a reload, the drain."""
        if self._out is not None:
            self._put({"time": _wall_time(), "event": event, **fields})

    def fault(self, error: Exception, call_id: str = "") -> None:
        """A bug of ours: where it is, but not the values, which may hold what a client sent."""
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        self.event("internal_error", id=call_id or None, type=type(error).__name__, where=where)

    def task_failed(self, name: str, error: Exception) -> None:
        """A task or thread that must go on has failed; it is started again."""
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        self.event("task_failed", task=name, type=type(error).__name__, where=where)

    def guard(self, call_id: str, step: Callable[..., object], *arguments: object) -> bool:
        """Takes one step of many that must all be taken: a bug in it is logged, and keeps nothing from the others."""
        try:
            step(*arguments)
        except Exception as error:
            self.fault(error, call_id)
            return False
        return True

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=2)
        if self._out is not None and self._out is not sys.stdout.buffer:
            self._out.close()

    def _put(self, record: dict[str, Any]) -> None:
        if len(self._lines) >= self.lines_max:
            self.dropped += 1
            return
        try:
            line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # a number beyond 64 bits, or half a character: an engine may say anything
            line = json.dumps(record, default=str).encode() + b"\n"
        self._lines.append(line)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def _write_lines(self) -> None:
        assert self._out is not None
        while True:
            self._wake.wait()
            if not self._closing:
                time.sleep(_FLUSH_S)  # one write for many lines
            self._wake.clear()
            self._awake = False
            lines = []
            while self._lines:
                lines.append(self._lines.popleft())
            self._write(b"".join(lines))
            if self._closing and not self._lines:
                return

    def _write(self, data: bytes) -> None:
        """All of it, or as many whole lines as there is room for; the rest is counted as dropped."""
        assert self._out is not None
        if self._torn:  # a disk that was full has half a line: the next one must not be glued to it
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += self._out.write(data[written:]) or 0
            self._out.flush()
        except (OSError, ValueError):
            # The first line that was not taken whole counts, unless only its end is missing: that comes with the next write.
            self.dropped += data.count(b"\n", written + data.startswith(b"\n", written))
        if written:
            self._torn = data[written - 1 : written] != b"\n"


class _WallClock:
    """The time of day as text; the part down to seconds is made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = ""

    def __call__(self) -> str:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{int((now - second) * 1000):03d}Z"


_wall_time = _WallClock()


def call_record(call: Call) -> dict[str, Any]:
    """A call as its log line has it; times are seconds since its first byte."""
    reason, start = call.reason, call.started_at
    assert reason is not None and call.ended_at is not None
    return {
        "time": _wall_time(),
        "event": "call_ended",
        "id": call.id,
        "trace_id": call.trace_id or None,
        "client": call.peer,
        "tenant": call.tenant,
        "route": call.route,
        "model": call.model,
        "stream": call.stream,
        "backend": call.backend,
        "engine_id": call.engine_id or None,
        "attempts": call.attempts,
        "outcome": reason.outcome,
        "cause": reason.code,
        "detail": call.detail or None,
        "status": call.status,
        "received_s": _since(start, call.received_at),
        "sent_s": _since(start, call.sent_at),
        "first_byte_s": _since(start, call.answered_at),
        "first_token_s": _since(start, call.first_token_at),
        "total_s": _since(start, call.ended_at),
        "tokens_in": call.tokens_in,
        "tokens_out": call.tokens_out,
        "tokens_exact": call.tokens_exact,
        "bytes_in": call.bytes_in,
        **after_the_end(call),
    }


def after_the_end(call: Call) -> dict[str, Any]:
    """What its engine did after the call's end, as far as that is known by now."""
    tokens, fate = call.tokens_after_end, call.stop_state
    return {
        "release": fate.value if fate is not None else None,
        "tokens_after_hangup": tokens,
        "tokens_after_exact": None if tokens is None else all(stop.tokens_exact for stop in call.pending_stops),
    }


def _since(start: float, moment: float | None) -> float | None:
    return None if moment is None else int((moment - start) * 1e6) / 1e6
