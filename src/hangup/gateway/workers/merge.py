"""Makes one answer of the admin API out of the answers of all workers. Only values in and out; no I/O."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

_SHOWN = 8  # rows of a list in the overview
_Row = dict[str, Any]
_Name = TypeVar("_Name", str, int)
# As `SORTS` of the workers' own listings, by the fields of a row.
_SORT_KEYS: dict[str, Callable[[_Row], float | str]] = {
    "age": lambda row: -row["age_s"],
    "idle": lambda row: -(row["idle_s"] if row["idle_s"] is not None else row["age_s"]),
    "tokens": lambda row: -row["tokens_out"],
    "rate": lambda row: -(row["tokens_per_s"] or 0.0),
    "tenant": lambda row: row["tenant"],
    "model": lambda row: row["model"],
    "backend": lambda row: row["backend"],
    "phase": lambda row: row["phase"],
    "client": lambda row: row["client"],
    "deadline": lambda row: row["deadline_left_s"] if row["deadline_left_s"] is not None else math.inf,
}


def calls(pages: Sequence[_Row], sort: str, offset: int, limit: int) -> _Row:
    """Merge listings that each begin with the first call."""

    def key(row: _Row) -> tuple[float | str, float]:
        return by(row), -row["age_s"]

    by = _SORT_KEYS[sort.removeprefix("-")]
    rows = [row for page in pages for row in page["calls"]]
    pick = heapq.nlargest if sort.startswith("-") else heapq.nsmallest
    total, live = (sum(page[name] for page in pages) for name in ("total", "live"))
    return {
        "calls": pick(offset + limit, rows, key=key)[offset:],
        "total": total,
        "live": live,
        "offset": offset,
        "limit": limit,
    }


def backends(lists: Sequence[list[_Row]]) -> list[_Row]:
    """Merge the workers' views of the backends: loads add up, and the worst state is shown."""
    by_name: dict[str, list[_Row]] = {}
    for row in (row for rows in lists for row in rows):
        by_name.setdefault(row["name"], []).append(row)
    return [_backend(rows) for rows in by_name.values()]


def _backend(rows: list[_Row]) -> _Row:
    judged = max(rows, key=lambda row: row["ladder"] not in (None, "healthy"))  # by one worker, for all
    worst = max(rows, key=lambda row: (row["quarantined"], not row["state"].endswith("up"), row["failures"]))
    # One that must give places back to the others still uses them until its calls end.
    limits = [None if row["limit"] is None else max(row["limit"], row["in_flight"]) for row in rows]
    in_flight = sum(row["in_flight"] for row in rows)
    state = worst["state"].replace("drained, ", "draining, ") if in_flight else worst["state"]
    return {
        **worst,
        "state": state,
        **{name: judged[name] for name in ("ladder", "ladder_reason", "ladder_s")},
        "drained": all(row["drained"] for row in rows),
        "in_flight": in_flight,
        "limit": None if None in limits else sum(limits),
        "tokens_computed": _most(rows, "tokens_computed"),
        "busy": _most(rows, "busy"),
        "busy_s": round(sum(row["busy_s"] for row in rows), 3),  # each has its share
        "orphans": _most(rows, "orphans"),
        "alarm": next((row["alarm"] for row in rows if row["alarm"] is not None), None),
        "zombies": sorted({id for row in rows for id in row["zombies"]}),
    }


def _most(rows: list[_Row], name: str) -> float | None:
    return max((row[name] for row in rows if row[name] is not None), default=None)


def latest(lists: Iterable[list[_Row]], count: int | None = None) -> list[_Row]:
    """Merge lists of ended calls, the one that ended last first."""
    return sorted((row for rows in lists for row in rows), key=lambda row: float(row["ended_s_ago"]))[:count]


def overview(parts: Sequence[_Row]) -> _Row:
    """Merge the dashboard's snapshots."""
    sums = {name: sum(part[name] for part in parts) for name in ("live", "waiting", "connections", "tokens_streaming")}
    counters = {name: _add(part[name] for part in parts) for name in ("phases", "outcomes", "refusals", "tokens")}
    reasons = [part["not_ready"] for part in parts]
    alarms = {alarm["backend"]: alarm for part in parts for alarm in part["alarms"]}
    return {
        "version": parts[0]["version"],
        "not_ready": None if None in reasons else reasons[0],
        **sums,
        **counters,
        "refusal_words": {cause: words for part in parts for cause, words in part["refusal_words"].items()},
        "backends": backends([part["backends"] for part in parts]),
        "alarms": list(alarms.values()),
        "zombies": latest((part["zombies"] for part in parts), _SHOWN),
        "jobs": max((part["jobs"] for part in parts), key=lambda jobs: int(jobs["total"])),  # all of them know all jobs
        "left": latest((part["left"] for part in parts), _SHOWN),
        "rates": _rates([part["rates"] for part in parts]),
    }


def _add(counters: Iterable[dict[_Name, int]]) -> dict[_Name, int]:
    total: Counter[_Name] = Counter()
    for counter in counters:
        total.update(counter)
    return dict(total)


def _rates(parts: Sequence[_Row]) -> _Row:
    """Engines are the same for all workers; what they received adds up."""
    return {
        "busy": _most(list(parts), "busy"),
        "computed_per_s": _most(list(parts), "computed_per_s"),
        **{name: round(sum(part[name] for part in parts), 1) for name in ("received_per_s", "uncounted_per_s")},
    }


def history(parts: Sequence[_Row]) -> _Row:
    """Merge the workers' histories. Minutes and longer intervals end at the same time everywhere; single polls are matched by
    their order, the latest first."""
    length = max(part["length_s"] for part in parts)
    alike = [part for part in parts if part["length_s"] == length]
    together: dict[int, list[_Row]] = {}
    for part in alike:
        for back, row in enumerate(reversed(part["rows"])):
            together.setdefault(-int(row["end"] // length) if length else back, []).append(row)
    starts = [part["since"] for part in parts if part["since"] is not None]
    return {
        "length_s": length,
        "since": min(starts, default=None),
        "bounds": parts[0]["bounds"],
        "rows": [_interval(together[at]) for at in sorted(together, reverse=True)],
        "events": sorted((event for part in parts for event in part["events"]), key=lambda event: float(event["at"])),
    }


def _interval(rows: list[_Row]) -> _Row:
    names = dict.fromkeys(name for row in rows for name in row["groups"])
    return {
        "end": max(row["end"] for row in rows),
        "seconds": max(row["seconds"] for row in rows),
        "busy": _most(rows, "busy"),
        "computed": _most(rows, "computed"),
        **{name: round(sum(row[name] for row in rows), 1) for name in ("received", "uncounted", "live", "waiting")},
        "ends": _add(row["ends"] for row in rows),
        "every": _group([row["every"] for row in rows]),
        "groups": {name: _group([row["groups"][name] for row in rows if name in row["groups"]]) for name in names},
    }


def _group(groups: list[_Row]) -> _Row:
    counts = {name: sum(group[name] for group in groups) for name in ("calls", "not_served")}
    return counts | {name: _buckets([group[name] for group in groups]) for name in ("first_token", "queue")}


def _buckets(lists: list[list[tuple[int, int]]]) -> list[list[int]]:
    return [[bucket, count] for bucket, count in sorted(_add(dict(pairs) for pairs in lists).items())]
