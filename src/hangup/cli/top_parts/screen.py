"""Draws `hangup top`: lines of text, none wider than the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hangup.cli.client import silent_note
from hangup.cli.table import fitted
from hangup.cli.top_parts.state import TopState
from hangup.cli.top_parts.views import VIEWS, TopRow
from hangup.terminal import cells, count, fit, pad, paint

HELP = """\
1 … 6, Tab, ← →     calls, backends, zombies, queue, jobs, tenants
↑ ↓ or j k          select; PgUp, PgDn, g (first), G (last)
Enter               open the trace of a call, or the details of a job
/                   show only rows that contain what you type; Esc: all rows
s  S                sort by the next or the previous column; r reverses
x                   kill a call, cancel a job, drain a backend; it asks first
q                   back, or quit
mouse               click a view or a row; click a row again to open it; wheel

A zombie is work that an engine goes on with after its call has ended.
The queue holds the calls that wait for a place in an engine.""".splitlines()
_HINTS = "? help  / filter  s sort  Enter open  x act  q quit"


@dataclass(slots=True)
class Drawing:
    """The lines of a screen, and where to click."""

    lines: list[str]
    rows: list[tuple[int, str]] = field(default_factory=list)
    tabs: list[tuple[int, int, str]] = field(default_factory=list)
    tab_line: int = 1


def matching(rows: list[TopRow], text: str) -> list[TopRow]:
    """Return the rows that contain the text anywhere, whatever its case."""
    wanted = text.lower()
    return [row for row in rows if wanted in " ".join((row.key, *row.cells)).lower()] if wanted else rows


def draw(
    overview: dict[str, Any],
    rows: list[TopRow],
    state: TopState,
    message: str,
    page: list[str],
    size: tuple[int, int],
    *,
    coloured: bool = True,
) -> Drawing:
    """Return the screen: a summary, the views, a line for messages, the table or the page that covers it, and hints."""
    width, height = size
    drawing = Drawing([_summary(overview, width, coloured)])
    drawing.lines.append(_tabs(overview, state, width, drawing, coloured))
    drawing.lines += [
        paint(fit(f"! {alarm['backend']} computes tokens that nobody receives", width), "red", coloured)
        for alarm in overview["alarms"][:2]
    ]
    if silent := silent_note(overview):
        drawing.lines.append(paint(fit(f"! {silent}", width), "red", coloured))
    drawing.lines.append(fit(_prompt(state, message, len(rows)), width))
    room = max(height - len(drawing.lines) - 1, 1)
    if state.page:
        page = HELP if state.page == "help" else page
        first = min(state.scroll, max(len(page) - room, 0))
        drawing.lines += [fit(line, width) for line in page[first : first + room]]
    else:
        _draw_table(drawing, rows, state, width, room, coloured)
    drawing.lines += [""] * (height - 1 - len(drawing.lines))
    drawing.lines.append(paint(fit("q back  ↑↓ scroll" if state.page else _HINTS, width), "dim", coloured))
    return drawing


def _draw_table(drawing: Drawing, rows: list[TopRow], state: TopState, width: int, room: int, coloured: bool) -> None:
    view = state.shown
    if not rows:
        drawing.lines.append(fit("no row contains the filter" if state.filter else view.nothing, width))
        return
    keys = [row.key for row in rows]
    at = keys.index(state.selected) if state.selected in keys else 0
    first = max(0, min(at - (room - 2) // 2, len(rows) - (room - 1)))
    shown = rows[first : first + room - 1]
    # All rows count for the widths, so that columns stay where they are while one scrolls.
    head, *lines = fitted(view.columns, [row.cells for row in rows], width, coloured=False)
    drawing.lines.append(paint(fit(head, width), "bold", coloured))
    for index, row in enumerate(shown, first):
        drawing.rows.append((len(drawing.lines), row.key))
        line = fit(lines[index], width)
        drawing.lines.append(paint(pad(line, width), "reverse", coloured) if index == at else _tinted(line, row, coloured))


def _tinted(line: str, row: TopRow, coloured: bool) -> str:
    words = set(row.cells)
    bad, waits = {"down", "quarantined", "zombie", "failed"}, {"waiting", "no answer yet"}
    return paint(line, "red" if words & bad else "yellow" if words & waits else "", coloured)


def _summary(overview: dict[str, Any], width: int, coloured: bool) -> str:
    tokens, rates = overview["tokens"], overview["rates"]
    delivered, wasted = tokens.get("delivered", 0), tokens.get("wasted", 0)
    share = f" ({wasted / (delivered + wasted):.0%})" if wasted else ""
    busy = "" if rates["busy"] is None else f"engines {rates['busy']:.0%} busy"
    now = [
        overview["not_ready"] or "ready",
        f"{count(overview['live'])} live",
        f"{count(overview['waiting'])} waiting",
        f"{count(rates['received_per_s'])} tok/s",
    ]
    since = f"since the start {count(delivered)} tokens delivered, {count(wasted)} wasted{share}"
    short = f"in all {count(delivered)} tok, {count(wasted)} wasted"
    texts = [", ".join(filter(None, (*now, *more))) for more in ((busy, since), (since,), (busy, short), (short,))]
    text = fit("hangup  " + next((text for text in texts if cells(text) + 8 <= width), texts[-1]), width)
    return paint(text[:6], "bold", coloured) + paint(text[6:], "red" if overview["not_ready"] else "", coloured)


def _tabs(overview: dict[str, Any], state: TopState, width: int, drawing: Drawing, coloured: bool) -> str:
    counts = {
        "calls": overview["live"],
        "backends": len(overview["backends"]),
        "zombies": sum(len(row["zombies"]) for row in overview["backends"]),
        "queue": overview["waiting"],
        "jobs": overview["jobs"]["total"],
    }
    parts, at = [], 0
    for number, name in enumerate(VIEWS, 1):
        text = f" {number} {name}" + (f" {count(counts[name])}" if name in counts else "") + " "
        if at + cells(text) > width:
            text = f" {number} "
            if at + cells(text) > width:
                break
        drawing.tabs.append((at, at + cells(text), name))
        at += cells(text)
        alarming = name == "zombies" and counts["zombies"]
        parts.append(paint(text, "reverse" if name == state.view else "red" if alarming else "", coloured))
    return "".join(parts)


def _prompt(state: TopState, message: str, found: int) -> str:
    if state.typing:
        return f"/{state.filter}_   Enter keeps it, Esc shows all"
    if state.confirming[0]:
        return f"{state.confirming[0]} {state.confirming[1]}? y to confirm, any other key to cancel"
    if message:
        return message
    if state.page:
        return ""
    order = f"sorted by {state.sort.removeprefix('-')}" + (", reversed" if state.sort.startswith("-") else "")
    return order + (f", {found} with {state.filter!r} (Esc: all)" if state.filter else "")
