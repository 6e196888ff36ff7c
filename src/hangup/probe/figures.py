"""An engine's own figures: which pages report what it runs, and how to read them. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hangup.core.reaper import EngineStatus, Slot
from hangup.probe import metrics_page

Reader = Callable[[bytes], EngineStatus | None]
_MEMORY = ("process_resident_memory_bytes",)
_DESCRIPTORS = ("process_open_fds",)


@dataclass(frozen=True, slots=True)
class FigureSource:
    """A page that reports what an engine runs."""

    path: str
    read: Reader
    pace_s: float = 0.1  # the pause between two questions
    # The same pause while a client that does not stream is leaving. llama-server looks after such a client only in a second
    # without events, and each question is an event: asked more often, it would never notice.
    silent_pace_s: float = 0.1
    lag_s: float = 0.0  # how old its figures may be


def read_metrics(page: bytes) -> EngineStatus | None:
    """Read a page of Prometheus metrics."""
    found = metrics_page.read(page)
    if found.running is None or found.running < 0:
        return None
    return EngineStatus(int(found.running), int(max(found.waiting or 0, 0)), tokens=found.tokens)


def read_calls(page: bytes) -> EngineStatus | None:
    """Read hangup's own engine: GET /calls."""
    table = _json(page)
    if not isinstance(table, dict) or not isinstance(table.get("calls"), dict):
        return None
    return EngineStatus(_number(table.get("running")), _number(table.get("waiting")), tokens=_number(table.get("tokens")))


def read_slots(page: bytes) -> EngineStatus | None:
    """Read llama-server: GET /slots."""
    rows = _json(page)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "is_processing" in row for row in rows):
        return None
    slots = tuple(_slot(row) for row in rows)
    return EngineStatus(sum(slot.busy for slot in slots), slots=slots)


def read_loads(page: bytes) -> EngineStatus | None:
    """Read SGLang: GET /v1/loads."""
    table = _json(page)
    rows = (table.get("loads") or table.get("data") or [table]) if isinstance(table, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "num_running_reqs" in row for row in rows):
        return None
    running = sum(_number(row["num_running_reqs"]) for row in rows)
    return EngineStatus(running, sum(_number(row.get("num_waiting_reqs")) for row in rows))


# In the order in which they are tried: what knows single calls or slots comes before counts.
SOURCES = (
    FigureSource("/calls", read_calls),
    FigureSource("/slots", read_slots, silent_pace_s=1.25),
    FigureSource("/v1/loads?include=core,queues", read_loads, lag_s=0.5),
    FigureSource("/metrics", read_metrics, lag_s=0.5),
    FigureSource("/prometheus/metrics", read_metrics, lag_s=2.0),
    FigureSource("/metrics/", read_metrics, lag_s=0.5),
)


def sources(page: str) -> list[FigureSource]:
    """Return the sources to try: all, or those for one page."""
    if not page:
        return list(SOURCES)
    readers = {source.read: source for source in SOURCES}
    return [FigureSource(page, s.read, s.pace_s, s.silent_pace_s, s.lag_s) for s in readers.values()]


def slots_of(status: EngineStatus, properties: object) -> int:
    """Return the number of slots, from a status or from what the engine says of itself (/props, /server_info); 0: unknown."""
    if status.slots is not None:
        return len(status.slots)
    table = properties if isinstance(properties, dict) else {}
    return next((count for name in ("total_slots", "max_running_requests", "slots") if (count := _number(table.get(name)))), 0)


def upkeep(page: bytes) -> tuple[float | None, float | None]:
    """Return the memory in bytes and the open descriptors of the engine's process, where its metrics report them."""
    return metrics_page.total(page, _MEMORY), metrics_page.total(page, _DESCRIPTORS)


class TokenMeter:
    """Follows how many tokens an engine computed, from counters or from its slots."""

    def __init__(self) -> None:
        self._by_task: dict[tuple[int, str], int] = {}

    def feed(self, status: EngineStatus) -> int | None:
        """Return the tokens so far; None if the engine does not tell."""
        if status.tokens is not None:
            return status.tokens
        if status.slots is None:
            return None
        for slot in status.slots:
            if slot.busy:
                key = slot.id, slot.task
                self._by_task[key] = max(self._by_task.get(key, 0), slot.tokens)
        return sum(self._by_task.values())


def _slot(row: dict[str, Any]) -> Slot:
    token = row.get("next_token")
    token = token[0] if isinstance(token, list) and token else token
    decoded = token.get("n_decoded") if isinstance(token, dict) else row.get("n_decoded")
    return Slot(_number(row.get("id")), bool(row["is_processing"]), str(row.get("id_task", "")), _number(decoded))


def _json(page: bytes) -> object:
    try:
        return json.loads(page)
    except ValueError:
        return None


def _number(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) and 0 <= value <= 2.0**53 else 0
