"""Presents the results of a study: as a table, a few sentences, JSON or a plot."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hangup.errors import HangupError
from hangup.sim.policies import HANGUP
from hangup.sim.study import Row

_COLUMNS = (
    ("load", "load", "{:.3g}×"),
    ("policy", "policy", "{}"),
    ("backends", "backends", "{}"),
    ("goodput", "goodput_ratio", "{:.3f}"),
    ("waste", "waste_share", "{:.3f}"),
    ("idle", "idle_share", "{:.3f}"),
    ("mix", "mix_shift", "{:+.3f}"),
    ("refused", "refused_share", "{:.3f}"),
    ("left", "left_share", "{:.3f}"),
    ("served", "served_share", "{:.3f}"),
    ("TTFT p50", "ttft_s_p50", "{:.2f} s"),
    ("p99", "ttft_s_p99", "{:.2f} s"),
    ("mix pts", "mix_points", "{:.1f}"),
    ("engine queue", "engine_queue_peak", "{}"),
)

_JOB_COLUMNS = (  # for policies that run jobs
    ("idle filled", "jobs_fill_share", "{:.2f}"),
    ("yields/s", "jobs_yields_s", "{:.2f}"),
)


_GATEWAY_COLUMNS = (  # for several gateways
    ("gateways", "gateways", "{}"),
    ("beyond", "granted_beyond", "{}"),
    ("messages/s", "hub_messages_s", "{:.0f}"),
)

_DEATH_COLUMNS = (
    ("deaths", "gateway_deaths", "{}"),
    ("freed", "freed_s_mean", "{:.2f} s"),
    ("longest", "freed_s_max", "{:.2f} s"),
)

_MACHINES = frozenset(["calls_per_cpu_s"])  # measures this machine, not the simulation


def _columns(rows: Sequence[Row]) -> tuple[tuple[str, str, str], ...]:
    columns: tuple[tuple[str, str, str], ...] = _COLUMNS
    if any(not math.isnan(row.jobs_fill_share) for row in rows):
        columns += _JOB_COLUMNS
    if any(row.gateways > 1 for row in rows):
        columns += _GATEWAY_COLUMNS
    if any(row.gateway_deaths for row in rows):
        columns += _DEATH_COLUMNS
    return columns


def _cells(row: Row, columns: Sequence[tuple[str, str, str]]) -> list[str]:
    values = ((form, getattr(row, name)) for _, name, form in columns)
    return ["–" if isinstance(value, float) and math.isnan(value) else form.format(value) for form, value in values]


def table(rows: Sequence[Row]) -> str:
    columns = _columns(rows)
    lines = [[heading for heading, _, _ in columns], *(_cells(row, columns) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def as_json(rows: Sequence[Row]) -> str:
    """Return the rows as JSON, bit for bit the same for the same seeds: it leaves out what depends on this machine."""

    def clean(value: object) -> object:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(
        {"rows": [{key: clean(value) for key, value in asdict(row).items() if key not in _MACHINES} for row in rows]}, indent=1
    )


def sentences(rows: Sequence[Row], enough: float | None) -> list[str]:
    """Return answers to an operator's questions, as far as the rows hold them.

    `enough` is the share of calls to serve, at one rate for all numbers of backends.
    """
    said = []
    by_backends = sorted({row.backends for row in rows})
    if enough is not None and len(by_backends) > 1:
        fit = [n for n in by_backends if all(r.served_share >= enough for r in rows if r.backends == n and r.policy == HANGUP)]
        said.append(
            f"{fit[0]} backend{'s' * (fit[0] != 1)} serve{'s' * (fit[0] == 1)} at least {enough:.0%} of the calls."
            if fit
            else f"Even {by_backends[-1]} backends serve less than {enough:.0%} of the calls; try more with --backends."
        )
    for load in sorted({row.load for row in rows}):
        here = {row.policy: row for row in rows if row.load == load}
        ours, direct = here.get(HANGUP), here.get("direct")
        if ours is not None and direct is not None and direct.waste_share > 0:
            more = _times(ours.goodput_tokens_s, direct.goodput_tokens_s)
            said.append(
                f"At {load:g}×: without hangup {direct.waste_share:.0%} of the engines' work is for clients who disconnected, "
                f"with hangup {ours.waste_share:.1%}; {more} tokens reach a client."
            )
    return said


def _times(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.1f} × as many" if theirs else "only then"


def plot(rows: Sequence[Row], path: Path) -> None:
    if path.suffix == ".html":
        path.write_text(_html(rows), encoding="utf-8")
    elif path.suffix == ".png":
        _png(rows, path)
    else:
        raise HangupError(f"--plot takes a .png or an .html file, not {path.name}")


_PANELS = (
    ("goodput / bound", "goodput_ratio"),
    ("waste (share of engine work)", "waste_share"),
    ("refused (share of attempts)", "refused_share"),
    ("TTFT p50 (s)", "ttft_s_p50"),
    ("TTFT p99 (s)", "ttft_s_p99"),
)


def check_plot(path: Path) -> None:
    """Raise if the plot cannot be written, before hours of work rather than after."""
    if path.suffix not in (".png", ".html"):
        raise HangupError(f"--plot takes a .png or an .html file, not {path.name}")
    if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise HangupError("a .png plot needs matplotlib: pip install 'hangup[plot]', or write an .html file")


def _png(rows: Sequence[Row], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra, and slow to load)

    figure = Figure(figsize=(15, 3.4), layout="constrained")
    axes = figure.subplots(1, len(_PANELS))
    for axis, (title, name) in zip(axes, _PANELS, strict=True):
        for policy in dict.fromkeys(row.policy for row in rows):
            points = [(row.load, getattr(row, name)) for row in rows if row.policy == policy]
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=policy)
        axis.set(title=title, xlabel="load")
        axis.set_xscale("log")
        if name.startswith("ttft"):
            axis.set_yscale("log")
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, dpi=120)


_COLOURS = ("#0b7", "#d33", "#36c", "#e90", "#93c", "#666", "#0aa")
_WIDTH, _HEIGHT, _EDGE = 300, 200, 34


def _html(rows: Sequence[Row]) -> str:
    """Return a self-contained page without scripts: five drawings and the table."""
    names = list(dict.fromkeys(row.policy for row in rows))
    colour = dict(zip(names, _COLOURS * 2, strict=False))
    drawings = "".join(_drawing(rows, title, name, colour) for title, name in _PANELS)
    legend = " ".join(f'<b style="color:{colour[name]}">● {name}</b>' for name in names)
    columns = _columns(rows)
    heads = "".join(f"<th>{heading}</th>" for heading, _, _ in columns)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in _cells(row, columns)) + "</tr>" for row in rows)
    return (
        "<!doctype html><meta charset=utf-8><title>hangup simulate</title>"
        "<style>body{font:14px system-ui;margin:2em;color-scheme:light dark}td,th{padding:.2em .7em;text-align:right}"
        "svg{margin:.5em}text{font:10px system-ui;fill:currentColor}</style>"
        f"<h1>hangup simulate</h1><p>{legend}</p>{drawings}<table><tr>{heads}</tr>{lines}</table>"
    )


def _drawing(rows: Sequence[Row], title: str, name: str, colour: dict[str, str]) -> str:
    points = {policy: [(r.load, getattr(r, name)) for r in rows if r.policy == policy] for policy in colour}
    known = [value for line in points.values() for _, value in line if not math.isnan(value)]
    top = max(known, default=1.0) * 1.05 or 1.0
    loads = sorted({row.load for row in rows})
    low, span = math.log(loads[0]), math.log(loads[-1] / loads[0]) or 1.0

    def at(load: float, value: float) -> str:
        x = _EDGE + (math.log(load) - low) / span * (_WIDTH - 2 * _EDGE)
        return f"{x:.1f},{_HEIGHT - _EDGE - value / top * (_HEIGHT - 2 * _EDGE):.1f}"

    lines = "".join(
        f'<polyline fill=none stroke="{colour[policy]}" stroke-width=2 points="'
        + " ".join(at(load, value) for load, value in line if not math.isnan(value))
        + '"/>'
        for policy, line in points.items()
    )
    ticks = "".join(
        f"<text x={at(load, 0).split(',')[0]} y={_HEIGHT - 18} text-anchor=middle>{load:g}×</text>" for load in loads
    )
    return (
        f'<svg width={_WIDTH} height={_HEIGHT} role=img aria-label="{title}"><text x={_EDGE} y=16>{title}</text>'
        f"<text x=2 y={_EDGE}>{top:.3g}</text><text x=2 y={_HEIGHT - _EDGE}>0</text>{ticks}{lines}</svg>"
    )
