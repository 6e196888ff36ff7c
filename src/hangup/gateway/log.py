"""The log: one JSON line for each ended call, and a few events of the gateway itself. Never a prompt, never a key.

A thread of its own writes the lines, so that a slow reader of the log cannot delay a stream. Lines beyond the buffer are
dropped and counted. On a terminal, that thread turns the lines into text (`log_text`).
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from io import RawIOBase
from pathlib import Path
from typing import Any, Final, cast

import orjson

from hangup.core.call import Call
from hangup.gateway.log_text import LogText
from hangup.tasks import TASKS
from hangup.terminal import is_coloured

_FLUSH_S: Final = 0.05
_CLOSE_S: Final = 2.0  # for the last lines
# What happened to backends, and what operators did: the dashboard lists these.
_LISTED: Final = frozenset(
    [
        "backend_changed",
        "call_killed",
        "calls_evicted",
        "config_reloaded",
        "divergence_alarm_changed",
        "engine_exited",
        "ladder_step_taken",
        "orphans_found",
        "zombie_found",
        "zombie_gone",
    ]
)


class Log:
    def __init__(self, target: str, lines_max: int, *, shared: bool = False, format: str = "json", events_max: int = 0) -> None:
        """`shared`: other processes write to the same target, and no line may be torn by another's. `format`: json, text, or
        auto, which is text on a terminal and JSON elsewhere. `events_max`: how many events the dashboard can list."""
        self.dropped = 0
        self.events: deque[dict[str, Any]] = deque(maxlen=events_max)  # those that the dashboard lists, oldest first
        self._lines: deque[bytes] = deque()
        self.lines_max = lines_max
        self._wake = threading.Event()
        self._awake = False  # the same as `_wake.is_set()`, but cheaper to read
        self._closing = False
        self._torn = False  # True if the last write ended in the middle of a line
        self._out: RawIOBase | None = None
        self._closes_out = target != "-"
        self._writer: threading.Thread | None = None
        self._text: LogText | None = None  # None: JSON
        self._begun = threading.Event()
        if target != "none":
            self._out = _raw_stdout() if target == "-" else Path(target).open("ab", buffering=0)
            # The kernel keeps appended data together, but in a pipe only so many bytes.
            pipe = shared and stat.S_ISFIFO(os.fstat(self._out.fileno()).st_mode)
            self._piece_bytes_max = select.PIPE_BUF if pipe else sys.maxsize
            if format == "text" or (format == "auto" and self._out.isatty()):
                self._text = LogText(self._out.fileno(), is_coloured(self._out))
            else:
                self._begun.set()
            self._writer = TASKS.thread("log", self._write_lines)

    @property
    def for_people(self) -> bool:
        """Return whether somebody reads this log at a terminal."""
        return self._text is not None

    def begin(self) -> None:
        """Write what was logged so far: at a terminal, lines wait until it was said what was started."""
        self._begun.set()

    def record(self, call: Call) -> dict[str, Any] | None:
        """Return the log line of an ended call; None if there is no log."""
        return call_record(call) if self._out is not None else None

    def call_ended(self, call: Call) -> None:
        """Log an ended call about which nothing more will be known."""
        if self._out is None:
            return
        line = _usual_line(call)
        if line is not None:
            self._put_line(line)
        else:
            self._put(call_record(call))

    def write(self, record: dict[str, Any]) -> None:
        if self._out is not None:
            self._put(record)

    def event(self, event: str, **fields: object) -> None:
        """Log an event of the gateway itself: a backend that went down, a reload, the drain."""
        if event in _LISTED:
            self.events.append({"at": round(time.time(), 1), "event": event, **fields})
        if self._out is not None:
            self._put({"time": _wall_time(), "event": event, **fields})

    def fault(self, error: Exception, call_id: str = "") -> None:
        """Log where a bug of the gateway occurred, but no values, which may contain a client's data."""
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        self.event("internal_error", id=call_id or None, type=type(error).__name__, where=where)

    def task_failed(self, name: str, error: Exception) -> None:
        """Log that a task or thread that must keep running has failed, and is restarted."""
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        self.event("task_failed", task=name, type=type(error).__name__, where=where)

    def guard(self, call_id: str, step: Callable[..., object], *arguments: object) -> bool:
        """Run one of several steps that must all run: log an exception instead of raising it, and return False."""
        try:
            step(*arguments)
        except Exception as error:
            self.fault(error, call_id)
            return False
        return True

    def close(self, within_s: float = _CLOSE_S) -> None:
        self._closing = True
        self._begun.set()
        self._wake.set()
        if self._writer is not None:
            self._writer.join(timeout=min(within_s, _CLOSE_S))
        if self._out is not None and self._closes_out:
            self._out.close()

    def _put(self, record: dict[str, Any]) -> None:
        try:
            line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # an integer beyond 64 bits or a lone surrogate, from an engine
            line = json.dumps(record, default=str).encode() + b"\n"
        self._put_line(line)

    def _put_line(self, line: bytes) -> None:
        if len(self._lines) >= self.lines_max:
            self.dropped += 1
            return
        self._lines.append(line)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def _write_lines(self) -> None:
        assert self._out is not None
        self._begun.wait()
        while True:
            self._wake.wait()
            if not self._closing:
                time.sleep(_FLUSH_S)  # one write for many lines
            self._wake.clear()
            self._awake = False
            lines = []
            while self._lines:
                lines.append(self._lines.popleft())
            with TASKS.working("log"):
                if self._text is not None:
                    lines = self._text.lines(lines)
                for piece in _pieces(lines, self._piece_bytes_max):
                    self._write(piece)
            if self._closing and not self._lines:
                return

    def _write(self, data: bytes) -> None:
        """Write all lines, or as many as there is room for, and count the others as dropped."""
        assert self._out is not None
        if self._torn:  # after a full disk, the next line must not continue half a line
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                taken = self._out.write(data[written:])
                if taken is None:  # a pipe that another process made non-blocking is full: this thread can wait
                    _wait_for_room(self._out)
                written += taken or 0
        except (OSError, ValueError):
            # A line that was cut counts as dropped, unless only its line end is missing, which the next write adds.
            self.dropped += data.count(b"\n", written + data.startswith(b"\n", written))
        if written:
            self._torn = data[written - 1 : written] != b"\n"


def _wait_for_room(file: RawIOBase) -> None:
    """Wait until a pipe can be written to; `select.select` knows only descriptors below 1024."""
    poll = select.poll()
    poll.register(file, select.POLLOUT)
    poll.poll()


def _pieces(lines: list[bytes], bytes_max: int) -> Iterator[bytes]:
    """Join lines, as many as `bytes_max` allows; a longer line is a piece of its own."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        if piece and size + len(line) > bytes_max:
            yield b"".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if piece:
        yield b"".join(piece)


def _raw_stdout() -> RawIOBase:
    """Stdout without its buffer, which does not tell how much of a failed write the disk took."""
    sys.stdout.flush()
    return cast(RawIOBase, getattr(sys.stdout.buffer, "raw", sys.stdout.buffer))


class _WallClock:
    """Formats the current UTC time; caches the text for a millisecond, and the part down to seconds for a second."""

    def __init__(self) -> None:
        # Each time and its text change together, because several threads log.
        self._to_ms = self._to_seconds = (0, "")

    def __call__(self) -> str:
        ms = int(time.time() * 1000)
        cached_ms, text = self._to_ms
        if ms != cached_ms:
            second, fraction = divmod(ms, 1000)
            cached_second, to_seconds = self._to_seconds
            if second != cached_second:
                to_seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
                self._to_seconds = (second, to_seconds)
            text = f"{to_seconds}.{fraction:03d}Z"
            self._to_ms = (ms, text)
        return text


_wall_time = _WallClock()


def call_record(call: Call) -> dict[str, Any]:
    """Return the fields of a call's log line; times are in seconds since the call's first byte."""
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
    """Return what the engine did after the call's end, as far as known by now."""
    tokens, fate = call.tokens_after_end, call.stop_state
    return {
        "release": fate.value if fate is not None else None,
        "tokens_after_hangup": tokens,
        "tokens_after_exact": None if tokens is None else all(stop.tokens_exact for stop in call.pending_stops),
    }


# The line of a call that had every step once and ended with its engine's answer: `call_record` as a template. A table of thirty
# fields for each call was a twentieth of a small request's cost.
_USUAL_LINE: Final = (
    b'{"time":"%b","event":"call_ended","id":%b,"trace_id":null,%b,"engine_id":%b,"attempts":%d,%b,"detail":null,"status":%d,'
    b'"received_s":%.6f,"sent_s":%.6f,"first_byte_s":%.6f,"first_token_s":%.6f,"total_s":%.6f,'
    b'"tokens_in":%b,"tokens_out":%d,"tokens_exact":%b,"bytes_in":%d,'
    b'"release":null,"tokens_after_hangup":0,"tokens_after_exact":true}\n'
)
_NAMES_MAX: Final = 1024
_names: dict[tuple[object, ...], bytes] = {}  # the encoded fields that many calls share


def _usual_line(call: Call) -> bytes | None:
    """Return the encoded line of a call in the usual case, else None."""
    start, received, sent, answered = call.started_at, call.received_at, call.sent_at, call.answered_at
    first, ended, reason = call.first_token_at, call.ended_at, call.reason
    if received is None or sent is None or answered is None or first is None or ended is None or reason is None:
        return None
    if not call.engine_finished or call.pending_stops or call.trace_id or call.detail:
        return None
    who = (call.peer, call.tenant, call.route, call.model, call.stream, call.backend)
    try:
        parties = _names.get(who) or _encode_names(who, ("client", "tenant", "route", "model", "stream", "backend"))
        cause = _names.get((reason,)) or _encode_names((reason,), ("outcome", "cause"), (reason.outcome, reason.code))
        return _USUAL_LINE % (
            _wall_time().encode("ascii"),
            orjson.dumps(call.id),
            parties,
            orjson.dumps(call.engine_id) if call.engine_id else b"null",
            call.attempts,
            cause,
            call.status,
            received - start,
            sent - start,
            answered - start,
            first - start,
            ended - start,
            b"null" if call.tokens_in is None else b"%d" % call.tokens_in,
            call.tokens_out,
            b"true" if call.tokens_exact else b"false",
            call.bytes_in,
        )
    except TypeError:  # a lone surrogate in a name
        return None


def _encode_names(key: tuple[object, ...], names: tuple[str, ...], values: tuple[object, ...] = ()) -> bytes:
    if len(_names) >= _NAMES_MAX:  # clients choose the names of models
        _names.clear()
    encoded = _names[key] = orjson.dumps(dict(zip(names, values or key, strict=True)))[1:-1]
    return encoded


def _since(start: float, moment: float | None) -> float | None:
    return None if moment is None else int((moment - start) * 1e6) / 1e6
