"""The log for people: a line of text for each record, none longer than the terminal is wide.

The log's thread makes the text from the JSON line, so it costs the path of a call nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from hangup.terminal import count, duration, fit, paint, short_id

_WIDTH = 120  # where the terminal does not say how wide it is
_STYLES = {
    "completed": "green",
    "client_gone": "yellow",
    "deadline": "yellow",
    "cap": "yellow",
    "shed": "yellow",
    "refused": "yellow",
    "killed": "yellow",
    "drained": "yellow",
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
Record = dict[str, Any]


class LogText:
    """Turns the log's JSON lines into text for one terminal."""

    def __init__(self, fd: int, coloured: bool) -> None:
        self._fd = fd
        self._coloured = coloured

    def lines(self, encoded: list[bytes]) -> list[bytes]:
        width = self._width()
        texts = (self._line(json.loads(line), width) for line in encoded)  # not orjson, which refuses lone surrogates
        return [text.encode("utf-8", "backslashreplace") + b"\n" for text in texts if text]

    def _line(self, record: Record, width: int) -> str:
        clock = time.strftime("%H:%M:%S")
        is_call = record["event"] == "call_ended"
        try:
            text, style = call_text(record) if is_call else event_text(record)
        except (KeyError, TypeError, ValueError, AttributeError):  # a field that a sentence needs is odd: show what there is
            text, style = _fields(record), ""
        text = _one_line(text)
        if not text:
            return ""
        text = fit(text, width - len(clock) - 1)
        # A call's line has colour in its first words only: whole lines in colour are hard to read.
        head, rest = _parted(text, record) if is_call else (text, "")
        return paint(clock, "dim", self._coloured) + " " + paint(head, style, self._coloured) + rest

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
    names = " ".join(filter(None, (record["route"].partition(".")[2] or record["route"], record["model"], record["tenant"])))
    if record["sent_s"] is None:  # no engine saw it
        why = record["detail"] or record["cause"].replace("_", " ")
        facts = f"{why} ({names})" if names else why
    else:
        parts = [names]
        if outcome != "completed":
            parts.insert(0, _end(record))
        if record["first_token_s"] is not None:
            parts.append(f"first {duration(record['first_token_s'])}")
        parts += [record["backend"], f"attempt {record['attempts']}" if record["attempts"] > 1 else ""]
        facts = "  ".join(filter(None, parts))
    work = f"{count(record['tokens_out']):>5} tok {duration(record['total_s']):>6}  " if record["sent_s"] is not None else " "
    return f"{status or '-':>3} {outcome:<11} {short_id(record['id']):<11} {work}{facts}", style


def _end(record: Record) -> str:
    """Return why the call ended early, and whether its engine stopped."""
    why = record["detail"] or _CAUSES.get(record["cause"]) or record["cause"].replace("_", " ")
    release = _RELEASES.get(record["release"], "")
    after = record["tokens_after_hangup"]
    since = f", {count(after)} tokens later" if release and after else ""
    return f"{release}{since} ({why})" if release else why


def _backend_found(r: Record) -> str:
    engine = f"{r['engine']} {r['version']}".rstrip()
    verified = f"verified by {r['verified_by']}" if r["verified_by"] else "not verified: it does not report its work"
    return f"{r['backend']} is up: {engine}; stops are {verified}; stopped by {r['stops_by']}"


def _backend_changed(r: Record) -> str:
    return "" if r["change"].startswith("recognised") else f"{r['backend']} {r['change']}"  # `backend_found` says more


def _drain_started(r: Record) -> str:
    if not r["live"]:
        return "stopping: no live calls"
    calls = f"{r['live']} live call{'s' * (r['live'] != 1)}"
    return (
        f"draining: {calls} may finish within {duration(r['drain_s'])}; Ctrl-C again ends {'it' if r['live'] == 1 else 'them'}"
    )


def _zombie_found(r: Record) -> str:
    return f"zombie: {r['backend']} still computes {short_id(r['id'])}, {duration(r['since_s'])} after its end"


# The events that deserve a sentence; the others are shown with their fields.
_EVENTS: dict[str, Callable[[Record], str]] = {
    "backend_found": _backend_found,
    "backend_changed": _backend_changed,
    "drain_started": _drain_started,
    "drain_cut_short": lambda r: f"ended {r['ended']} live calls before they were complete",
    "call_killed": lambda r: f"{short_id(r['id'])} was killed by an operator",
    "models_changed": lambda r: f"{r['backend']} has {r['count']} model{'s' * (r['count'] != 1)}: {', '.join(r['models'])}",
    "zombie_found": _zombie_found,
    "zombie_gone": lambda r: f"{r['backend']} no longer computes {short_id(r['id'])}",
    "config_reload_failed": lambda r: f"the configuration was not reloaded: {'; '.join(r['problems'])}",
    "connections_max_lowered": lambda r: f"at most {count(r['connections_max'])} connections: the system allows few open files",
}
_BAD = ("failed", "_found", "lost", "died", "stuck", "stalled", "error", "hangs", "gone", "full", "exited")


def event_text(record: Record) -> tuple[str, str]:
    """Return the line of an event of the gateway itself, and its style."""
    event = record["event"]
    text = _EVENTS.get(event, _fields)(record)
    if event == "backend_changed":
        return text, "red" if record["change"].startswith(("down", "does not answer")) else ""
    good = event in ("backend_found", "zombie_gone")
    return text, "green" if good else "red" if any(word in event for word in _BAD) else ""


def _fields(record: Record) -> str:
    """Return an event and its fields, as far as they are known."""
    fields = {name: value for name, value in record.items() if name not in ("time", "event") and value not in (None, "", [])}
    words = record["event"].replace("_", " ")
    shown = ", ".join(
        f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in fields.items()
    )
    return f"{words}: {shown}" if shown else words
