"""The log for people: a line of text for each call, no longer than the terminal is wide; a sentence for each event of the
gateway itself, on as many lines as it needs (`log_events`).

The log's thread makes the text from the JSON line, so it costs the path of a call nothing.
"""

from __future__ import annotations

import json
import os
import time
from itertools import chain

from hangup.core.reasons import REASONS
from hangup.gateway.log_events import Record, event_text, fields
from hangup.terminal import count, duration, fit, paint, plural, short_id, wrap

_WIDTH = 120  # where the terminal does not say how wide it is
_LINES_MAX = 6  # of an event; a list of models, say, may be long
_STYLES = {
    "completed": "green",
    "client_gone": "yellow",
    "deadline": "yellow",
    "cap": "yellow",
    "shed": "yellow",
    "refused": "yellow",
    "killed": "yellow",
    "drained": "yellow",
    "engine_refused": "yellow",
    "engine_failed": "red",
}
_RELEASES = {
    "verified": "engine stopped",
    "restarted": "engine restarted",
    "unverified": "engine told, not verified",
    "pending": "engine not stopped yet",
    "zombie": "ENGINE STILL WORKING ON IT",
}
_CAUSES = {
    "fin": "client closed",
    "reset": "client reset",
    "silence": "client's host is silent",
    "write_stall": "client stopped reading",
}


class LogText:
    """Turns the log's JSON lines into text for one terminal."""

    def __init__(self, fd: int, coloured: bool) -> None:
        self._fd = fd
        self._coloured = coloured

    def lines(self, encoded: list[bytes]) -> list[bytes]:
        width = self._width()
        texts = (self._lines(json.loads(line), width) for line in encoded)  # not orjson, which refuses lone surrogates
        return [text.encode("utf-8", "backslashreplace") + b"\n" for text in chain.from_iterable(texts)]

    def _lines(self, record: Record, width: int) -> list[str]:
        clock = time.strftime("%H:%M:%S")
        is_call = record["event"] == "call_ended"
        try:
            text, style = call_text(record) if is_call else event_text(record)
        except (KeyError, TypeError, ValueError, AttributeError):  # a field that a sentence needs is odd: show what there is
            text, style = fields(record), ""
        text = _one_line(text)
        if not text:
            return []
        room = width - len(clock) - 1
        clock = paint(clock, "dim", self._coloured)
        if not is_call:  # what is wrong with an engine is worth more lines than one
            first, *more = wrap(text, room)
            if len(more) >= _LINES_MAX:
                more[_LINES_MAX - 2 :] = [fit(more[_LINES_MAX - 2] + "…", room)]
            margin = " " * (width - room)
            return [f"{clock} {paint(first, style, self._coloured)}", *(margin + paint(m, style, self._coloured) for m in more)]
        # A call's line has colour in its first words only: whole lines in colour are hard to read.
        head, rest = _parted(fit(text, room), record)
        return [f"{clock} {paint(head, style, self._coloured)}{rest}"]

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._fd).columns or _WIDTH
        except OSError:
            return _WIDTH


def _parted(text: str, record: Record) -> tuple[str, str]:
    """Return the status and the outcome, and the rest of a call's line."""
    length = 4 + max(11, len(str(record.get("outcome", ""))))
    return text[:length], text[length:]


def _one_line(text: str) -> str:
    """Escape what a terminal would obey: clients and engines choose parts of the text."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def call_text(record: Record) -> tuple[str, str]:
    """Return the line of an ended call, and its style."""
    outcome, status = record["outcome"], record["status"]
    style = "red" if record["cause"] == "internal_error" else _STYLES.get(outcome, "")
    if outcome == "completed" and status >= 400:
        style = "red" if status >= 500 else "yellow"
    tenant = record["tenant"] if record["tenant"] != "default" else ""  # there are no others
    names = " ".join(filter(None, (record["route"].partition(".")[2] or record["route"], record["model"], tenant)))
    tokens, took = record["tokens_out"], f"{duration(record['total_s']):>6}"
    if record["sent_s"] is None:  # no engine saw it
        facts, work = f"{_why(record)} ({names})" if names else _why(record), " "
    else:
        first = record["first_token_s"] if tokens else None
        attempts = f"attempt {record['attempts']}" if record["attempts"] > 1 else ""
        end, why = _end(record)
        parts = [end, names, f"first {duration(first)}" if first is not None else "", record["backend"], attempts, why]
        facts = "  ".join(filter(None, parts))
        # Embeddings and lists of models have no output tokens; that is no 0 to look at.
        work = f"{f'{count(tokens)} tok' if tokens or outcome != 'completed' else '':>9} {took}  "
    return f"{status or '-':>3} {outcome:<11} {short_id(record['id']):<11} {work}{facts}", style


def _why(record: Record) -> str:
    cause = record["cause"]
    known = _CAUSES.get(cause) or (REASONS[cause].message.rstrip(".") if cause in REASONS else cause.replace("_", " "))
    return str(record["detail"] or known)


def _end(record: Record) -> tuple[str, str]:
    """Return what matters most of a call that ended early, and what may be cut off: that a client closed is no news, but
    whether its engine stopped is."""
    if record["outcome"] == "completed":
        return "", ""
    release = _RELEASES.get(record["release"], "")
    after = record["tokens_after_hangup"]
    since = f", {plural(after, 'token')} later" if release and after else ""
    if record["outcome"] == "client_gone" and release:
        return release + since, f"({_why(record)})"
    return "  ".join(filter(None, (_why(record), release + since))), ""
