"""The views of `hangup top`: what each asks the gateway, and the rows that it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hangup.cli import backends, jobs, ps
from hangup.cli.table import Column, cell_text, styles
from hangup.gateway.admin.calls import SORTS
from hangup.terminal import count, duration

LIMIT = 1000  # rows that are fetched
Get = Callable[..., dict[str, Any]]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TopRow:
    key: str  # the id or name by which to act on it
    cells: list[str]
    order: tuple[Any, ...]  # the values by which columns sort


@dataclass(frozen=True, slots=True)
class View:
    name: str
    columns: tuple[Column, ...]
    sorts: tuple[str, ...]
    read: Callable[[Get, str], list[TopRow]]  # asks the gateway; sorts, if the gateway does not
    nothing: str
    act: str = ""  # what x does to a row
    opens: str = ""  # what Enter shows: a call's trace, or a job


def _calls(get: Get, sort: str, **filter: str) -> list[TopRow]:
    calls = get("/api/calls", sort=sort, limit=LIMIT, **filter)["calls"]
    rows = ps.rows(calls, short=True)
    # The filter of the screen looks at the whole id, which the order has.
    return [TopRow(call["id"], cells, (call["id"],)) for call, cells in zip(calls, rows, strict=True)]


def _by_column(rows: list[TopRow], columns: Sequence[Column], sort: str) -> list[TopRow]:
    at = next((at for at, column in enumerate(columns) if column.name.lower() == sort.removeprefix("-")), 0)

    # Numbers from the largest, texts from A; None last.
    def key(row: TopRow) -> tuple[bool, Any]:
        value = row.order[at]
        return value is None, -value if isinstance(value, int | float) else str(value)

    return sorted(rows, key=key, reverse=sort.startswith("-"))


def _backends(get: Get, sort: str) -> list[TopRow]:
    found = get("/api/backends")["backends"]
    rows = [
        TopRow(
            row["name"], cells, (cells[0], cells[1], cells[2], row["in_flight"], row["limit"], cells[5], len(row["zombies"]))
        )
        for row, cells in zip(found, backends.rows(found), strict=True)
    ]
    return _by_column(rows, backends.COLUMNS, sort)


_ZOMBIES = (
    Column("ID", least=11),
    Column("BACKEND", least=9),
    Column("SLOT", right=True, rank=5),
    Column("TENANT", least=6, rank=3),
    Column("CAUSE", least=6, rank=4),
    Column("ENDED", right=True),
    Column("TOKENS SINCE", right=True, rank=1),
    Column("ABORTS", right=True, rank=2),
    Column("STATE", least=9, style=styles({"zombie": "red", "verified": "green", "restarted": "green"}, "yellow")),
    Column("LIVED", right=True, rank=6),
)


_LEFT = {"fin": "closed", "reset": "reset", "silence": "silent", "write_stall": "stalled"}  # how its client left


def _zombies(get: Get, sort: str) -> list[TopRow]:
    rows, found = [], get("/api/zombies")["zombies"]
    for row, id in zip(found, ps.shortened([row["id"] for row in found]), strict=True):
        tokens, lived = row["tokens_since"], row["lived_s"]
        cells = [
            id,
            row["backend"],
            cell_text(row["slot"]),
            cell_text(row["tenant"]),
            cell_text(_LEFT.get(row["cause"], row["cause"])),
            f"{duration(row['ended_s_ago'])} ago",
            "-" if tokens is None else ("" if row["tokens_exact"] else "~") + count(tokens),
            str(row["aborts"]),
            row["release"],
            "-" if lived is None else duration(lived),
        ]
        order = (
            row["id"],
            cells[1],
            row["slot"],
            cells[3],
            cells[4],
            -row["ended_s_ago"],
            tokens,
            row["aborts"],
            cells[8],
            lived,
        )
        rows.append(TopRow(row["id"], cells, order))
    return _by_column(rows, _ZOMBIES, sort)


def _jobs(get: Get, sort: str) -> list[TopRow]:
    rows = []
    for job in get("/api/jobs", active="1", limit=LIMIT)["jobs"]:
        cells, items = jobs.row(job), job["items"]
        counts = (items["succeeded"], items["total"], items["running"], items["errored"])
        rows.append(
            TopRow(job["id"], cells, (cells[0], cells[1], cells[2], *counts, job["age_s"], cells[8], cells[9], cells[10]))
        )
    return _by_column(rows, jobs.COLUMNS, sort)


_TENANTS = (
    Column("TENANT", least=8),
    Column("LIVE", right=True),
    Column("WAITING", right=True, style=styles({"0": ""}, "yellow")),
    Column("TOK/S", right=True),
    Column("OLDEST", right=True, rank=2),
    Column("CALLS 1H", right=True),
    Column("DELIVERED", right=True, rank=1),
    Column("WASTED", right=True),
    Column("SAVED ~", right=True, rank=3),
)


def _tenants(get: Get, sort: str) -> list[TopRow]:
    """Each tenant's live calls, and what the ledger has of it for the last hour."""
    live: dict[str, list[Json]] = {}
    for call in get("/api/calls", limit=LIMIT)["calls"]:
        live.setdefault(call["tenant"], []).append(call)
    past = {row["tenant"]: row for row in get("/api/report", since_s=3600, by="tenant")["rows"]}
    rows = []
    for name in sorted({*live, *past}):
        calls, booked = live.get(name, []), past.get(name)
        oldest = max((call["age_s"] for call in calls), default=None)
        values = (
            len(calls),
            sum(call["phase"] == "waiting" for call in calls),
            round(sum(call["tokens_per_s"] or 0.0 for call in calls)),
            oldest,
            *((booked or {}).get(key, 0) for key in ("calls", "tokens_delivered", "tokens_wasted", "tokens_saved")),
        )
        cells = [name or "-", *(count(value) if value is not None else "-" for value in values)]
        cells[4] = "-" if oldest is None else duration(oldest)
        rows.append(TopRow(name, cells, (name, *values)))
    return _by_column(rows, _TENANTS, sort)


def _names(columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple(column.name.lower() for column in columns)


def _sorts(columns: Sequence[Column], *names: str) -> tuple[str, ...]:
    assert set(names) <= set(_names(columns))
    return names


VIEWS: Mapping[str, View] = {
    view.name: view
    for view in (
        View("calls", ps.COLUMNS, tuple(SORTS), _calls, "no live calls", "kill", "trace"),
        View(
            "backends",
            backends.COLUMNS,
            _sorts(backends.COLUMNS, "backend", "engine", "state", "in flight", "limit", "zombies"),
            _backends,
            "no backends",
            "drain",
        ),
        View(
            "zombies",
            _ZOMBIES,
            _sorts(_ZOMBIES, "ended", "backend", "tenant", "tokens since", "state"),
            _zombies,
            "no zombies: every engine stopped when it was told to",
            "",
            "trace",
        ),
        View(
            "queue",
            ps.COLUMNS,
            tuple(SORTS),
            lambda get, sort: _calls(get, sort, phase="waiting"),
            "no call waits",
            "kill",
            "trace",
        ),
        View(
            "jobs",
            jobs.COLUMNS,
            _sorts(jobs.COLUMNS, "age", "tenant", "status", "total"),
            _jobs,
            "no active jobs",
            "cancel",
            "job",
        ),
        View("tenants", _TENANTS, _sorts(_TENANTS, "live", "waiting", "tok/s", "wasted", "tenant"), _tenants, "no tenants"),
    )
}
