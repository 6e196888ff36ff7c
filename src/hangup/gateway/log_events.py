"""The events of the gateway itself, as sentences for people at a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hangup.terminal import count, duration, plural, short_id

Record = dict[str, Any]
Sentence = tuple[str, str]  # and its style

_STEPS = {
    "degraded": ("is suspected, so other backends are preferred", "yellow"),
    "abort": ("is told again to stop", "yellow"),
    "wait": ("cannot be told again to stop, so hangup waits", "yellow"),
    "quarantined": ("is quarantined and gets no calls", "red"),
    "restarting": ("is restarted", "red"),
    "canary": ("is tested with one call", "yellow"),
    "healthy": ("gets calls again", "green"),
}
_SIGNALS = {
    "exact": "by its own count of tokens",
    "statistical": "it is busy, and few tokens arrive",
    "zombies": "it keeps working on calls that ended",
    "alone": "it works although it has no call of ours",
}


def _backend_found(r: Record) -> str:
    engine = f"{r['engine']} {r['version']}".rstrip()
    verified = f"verified by {r['verified_by']}" if r["verified_by"] else "not verified: it does not report its work"
    return f"{r['backend']} is up: {engine}; calls are stopped by {r['stops_by']}; stops are {verified}"


def _backend_changed(r: Record) -> Sentence:
    change = r["change"]
    if change.startswith("recognised"):
        return "", ""  # `backend_found` says more
    bad = change.startswith(("down", "does not answer"))
    verb = "is " if change.startswith(("up", "down", "drained")) else ""
    return f"{r['backend']} {verb}{change}", "red" if bad else "green" if change == "up" else ""


def _drain_started(r: Record) -> str:
    if not r["live"]:
        return "stopping: no live calls"
    which = "it" if r["live"] == 1 else "them"
    return f"draining: {plural(r['live'], 'live call')} may finish within {duration(r['drain_s'])}; Ctrl-C again ends {which}"


def _step(r: Record) -> Sentence:
    words, style = _STEPS.get(r["step"], (r["step"], "yellow"))
    call = f" (call {short_id(r['id'])})" if r.get("id") else ""
    return f"{r['backend']} {words}{call}{': ' if r['reason'] else ''}{r['reason'] or ''}", style


def _alarm(r: Record) -> Sentence:
    if r["state"] != "raised":
        return f"the alarm of {r['backend']} has ended: what it computes is received", "green"
    tenants = r["suspects"]["tenants"]
    whose = f"; suspected: calls of {', '.join(tenants)} that ended early" if tenants else ""
    shown_by = _SIGNALS.get(r["signal"], r["signal"])
    return f"ALARM: {r['backend']} computes tokens that nobody receives ({shown_by}){whose}", "red"


def _reloaded(r: Record) -> Sentence:
    later = f"; these take effect after a restart only: {', '.join(r['needs_restart'])}" if r["needs_restart"] else ""
    part = "" if r["whole"] else "; a part could not be applied, see above: reload again"
    sizes = f"{plural(len(r['backends']), 'backend')}, {plural(len(r['tenants']), 'tenant')}"
    return f"the configuration was reloaded: {sizes}{later}{part}", "red" if part else "yellow" if later else "green"


def _orphans(r: Record) -> str:
    return f"{r['backend']} works on {plural(r['count'], 'call')} that this gateway did not send"


# The events that deserve a sentence, and its style; the others are shown with their fields.
EVENTS: dict[str, Callable[[Record], str | Sentence]] = {
    "backend_changed": _backend_changed,
    "backend_found": lambda r: (_backend_found(r), "green"),
    "call_killed": lambda r: f"{short_id(r['id'])} was killed by an operator",
    "calls_evicted": lambda r: (f"{r['backend']} lost its {plural(r['calls'], 'live call')}: {r['reason']}", "red"),
    "config_reload_failed": lambda r: (f"the configuration was not reloaded: {'; '.join(r['problems'])}", "red"),
    "config_reloaded": _reloaded,
    "connections_max_lowered": lambda r: f"at most {count(r['connections_max'])} connections: the system allows few open files",
    "divergence_alarm_changed": _alarm,
    "drain_cut_short": lambda r: f"ended {plural(r['ended'], 'live call')} before completion",
    "drain_started": _drain_started,
    "engine_exited": lambda r: (f"the process of {r['backend']} ended; it starts again in {duration(r['again_in_s'])}", "red"),
    "engine_spawn_failed": lambda r: (f"{r['backend']} cannot be started: {r['error']}", "red"),
    "engine_spawned": lambda r: f"started the engine of {r['backend']} (process {r['pid']})",
    "jobs_disabled": lambda r: (f"jobs are off: {r['error']}", "yellow"),
    "ladder_step_taken": _step,
    "models_changed": lambda r: f"{r['backend']} has {plural(r['count'], 'model')}: {', '.join(r['models'])}",
    "orphans_found": lambda r: (_orphans(r), "yellow"),
    "worker_leads": lambda r: f"process {r['pid']} judges the engines for all workers",
    "worker_started": lambda r: f"worker {r['worker']} serves (process {r['pid']})",
    "zombie_found": lambda r: (
        f"ZOMBIE: {r['backend']} still computes {short_id(r['id'])}, {duration(r['since_s'])} after its end",
        "red",
    ),
    "zombie_gone": lambda r: (f"{r['backend']} no longer computes {short_id(r['id'])}", "green"),
}
_BAD = ("failed", "_found", "lost", "died", "stuck", "stalled", "error", "hangs", "gone", "full", "exited")


def event_text(record: Record) -> Sentence:
    """Return the sentence of an event, and its style."""
    event = record["event"]
    made = EVENTS[event](record) if event in EVENTS else (fields(record), "red" if any(word in event for word in _BAD) else "")
    return made if isinstance(made, tuple) else (made, "")


def fields(record: Record) -> str:
    """Return an event and its fields, as far as they are known."""
    known = {name: value for name, value in record.items() if name not in ("time", "event") and value not in (None, "", [])}
    words = record["event"].replace("_", " ")
    shown = ", ".join(
        f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in known.items()
    )
    return f"{words}: {shown}" if shown else words
