"""Writes deploy/grafana/hangup.json: the panels are listed here, and the rest of what Grafana needs is generated."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "hangup.json"
# The variables of the board, and the selectors that apply them; `instance` and `job` are Prometheus' own labels.
VARIABLES = {
    "job": "label_values(hangup_build_info, job)",
    "instance": 'label_values(hangup_build_info{job=~"$job"}, instance)',
    "backend": 'label_values(hangup_backend_up{job=~"$job"}, backend)',
    "model": 'label_values(hangup_calls_total{job=~"$job"}, model)',
    "tenant": 'label_values(hangup_calls_total{job=~"$job"}, tenant)',
}
ALL = 'job=~"$job",instance=~"$instance"'
BACKEND = f'{ALL},backend=~"$backend"'
CALLS = f'{ALL},tenant=~"$tenant",model=~"$model"'
TIMES = f'{ALL},model=~"$model",backend=~"$backend"'
RED, GREEN, ORANGE = "red", "green", "orange"


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    width: int  # in 24ths
    targets: dict[str, str]  # expressions by legend
    kind: str = "timeseries"
    height: int = 8
    doc: str = ""
    steps: dict[float, str] = field(default_factory=dict)  # colours from these values on


def quantiles(metric: str, by: str = "") -> dict[str, str]:
    """Return the median and the 99th percentile of a histogram of calls, in all or by a label."""
    labels, legend = (f"le, {by}", f" {{{{{by}}}}}") if by else ("le", "")
    expression = f"sum by ({labels}) (rate({metric}_bucket{{{TIMES}}}[$__rate_interval]))"
    return {f"p{q}{legend}": f"histogram_quantile(0.{q}, {expression})" for q in (50, 99)}


def calls(by: str = "", over: str = "$__rate_interval", *, outcome: str = "") -> str:
    """Return the rate at which calls end, in all or by labels."""
    labels = f"{CALLS},{outcome}" if outcome else CALLS
    return f"sum{f' by ({by}) ' if by else ''}(rate(hangup_calls_total{{{labels}}}[{over}]))"


def not_served(by: str = "", over: str = "$__rate_interval") -> str:
    """Return the share of calls that were shed, refused by an engine, or failed in it: 0, not nothing, if there were none."""
    every = calls(by, over)
    failed = calls(by, over, outcome='outcome=~"engine_failed|engine_refused|shed"')
    return f"({failed} or 0 * {every}) / ({every} > 0)"


RELEASES = f"rate(hangup_release_seconds_bucket{{{ALL}}}[$__rate_interval])"
TABLE = {
    "calls/s": calls("model, backend", "$__range"),
    "not served": not_served("model, backend", "$__range"),
    "first token p99": (
        f"histogram_quantile(0.99, sum by (le, model, backend) (rate(hangup_first_token_seconds_bucket{{{TIMES}}}[$__range])))"
    ),
    "queue p99": (
        f"histogram_quantile(0.99, sum by (le, model, backend) (rate(hangup_queue_seconds_bucket{{{TIMES}}}[$__range])))"
    ),
}
ROWS: dict[str, list[Panel]] = {
    "Now": [
        Panel("Gateways up", "short", 3, {"up": f"sum(hangup_build_info{{{ALL}}})"}, "stat", 4, steps={0: RED, 1: GREEN}),
        Panel("Live calls", "short", 3, {"live": f"sum(hangup_calls_live{{{ALL}}})"}, "stat", 4),
        Panel("Waiting", "short", 3, {"waiting": f"sum(hangup_queue_depth{{{ALL}}})"}, "stat", 4),
        Panel("Calls per second", "reqps", 3, {"calls": calls()}, "stat", 4),
        Panel(
            "Not served",
            "percentunit",
            3,
            {"share": not_served()},
            "stat",
            4,
            "Calls that were shed, that an engine refused, or on which it failed",
            {0: GREEN, 0.01: ORANGE, 0.1: RED},
        ),
        Panel(
            "First token p99",
            "s",
            3,
            {"p99": quantiles("hangup_first_token_seconds")["p99"]},
            "stat",
            4,
        ),
        Panel("Zombies", "short", 3, {"zombies": f"sum(hangup_zombies{{{BACKEND}}})"}, "stat", 4, steps={0: GREEN, 1: RED}),
        Panel(
            "Backends not in use",
            "short",
            3,
            {"out": f"sum((1 - hangup_backend_up{{{BACKEND}}}) + hangup_backend_quarantined{{{BACKEND}}} > bool 0)"},
            "stat",
            4,
            "Down or quarantined",
            {0: GREEN, 1: RED},
        ),
        Panel(
            "By model and backend",
            "short",
            24,
            TABLE,
            "table",
            8,
            "Over the chosen time range",
        ),
    ],
    "Tokens": [
        Panel(
            "Tokens computed and received",
            "short",
            16,
            {
                "computed by {{backend}}": (
                    f"sum by (backend) (rate(hangup_backend_tokens_computed_total{{{BACKEND}}}[$__rate_interval]))"
                ),
                "received from {{backend}}": (
                    f"sum by (backend) (rate(hangup_output_tokens_total{{{BACKEND}}}[$__rate_interval]))"
                ),
            },
            doc="Where the upper line leaves the lower one, an engine computes for nobody",
        ),
        Panel("Divergence alarm", "short", 8, {"{{backend}}": f"hangup_divergence_alarm{{{BACKEND}}}"}),
        Panel(
            "Output tokens by result",
            "short",
            12,
            {"{{result}}": f"sum by (result) (rate(hangup_output_tokens_total{{{BACKEND}}}[$__rate_interval]))"},
        ),
        Panel(
            "Output tokens by tenant",
            "short",
            12,
            {
                "{{tenant}}": (
                    f'sum by (tenant) (rate(hangup_output_tokens_total{{{BACKEND},tenant=~"$tenant"}}[$__rate_interval]))'
                )
            },
        ),
    ],
    "Calls": [
        Panel(
            "Calls by outcome",
            "reqps",
            8,
            {"{{outcome}}": f"sum by (outcome) (rate(hangup_calls_total{{{CALLS}}}[$__rate_interval]))"},
        ),
        Panel(
            "Calls by status",
            "reqps",
            8,
            {"{{status}}": f"sum by (status) (rate(hangup_calls_total{{{CALLS}}}[$__rate_interval]))"},
        ),
        Panel(
            "Refusals by cause",
            "reqps",
            8,
            {
                "{{cause}}": (
                    f'sum by (cause) (rate(hangup_calls_total{{{CALLS},outcome=~"shed|.*refused"}}[$__rate_interval]))'
                )
            },
        ),
        Panel("Time to first token", "s", 8, quantiles("hangup_first_token_seconds")),
        Panel(
            "Time to first token by model, p99",
            "s",
            8,
            {"{{model}}": quantiles("hangup_first_token_seconds", "model")["p99 {{model}}"]},
        ),
        Panel("Time between tokens", "s", 8, quantiles("hangup_gap_seconds"), doc="A call's average"),
        Panel("Queue time", "s", 8, quantiles("hangup_queue_seconds")),
        Panel(
            "Queue time by backend, p99",
            "s",
            8,
            {"{{backend}}": quantiles("hangup_queue_seconds", "backend")["p99 {{backend}}"]},
        ),
        Panel(
            "Live calls by phase",
            "short",
            8,
            {"{{phase}}": f"sum by (phase) (hangup_calls_live{{{ALL}}})", "queue": f"sum(hangup_queue_depth{{{ALL}}})"},
        ),
    ],
    "Backends": [
        Panel("Engines busy", "percentunit", 8, {"{{backend}}": f"hangup_backend_busy_ratio{{{BACKEND}}}"}),
        Panel(
            "Calls in flight and limit",
            "short",
            8,
            {
                "{{backend}}": f"hangup_backend_in_flight{{{BACKEND}}}",
                "limit {{backend}}": f"hangup_backend_limit{{{BACKEND}}}",
            },
        ),
        Panel(
            "Backend state: up, drained, quarantined",
            "short",
            8,
            {
                "up {{backend}}": f"hangup_backend_up{{{BACKEND}}}",
                "drained {{backend}}": f"hangup_backend_drained{{{BACKEND}}}",
                "quarantined {{backend}}": f"hangup_backend_quarantined{{{BACKEND}}}",
            },
        ),
        Panel(
            "Zombies and pending stops",
            "short",
            8,
            {
                "zombies {{backend}}": f"hangup_zombies{{{BACKEND}}}",
                "pending {{backend}}": f"hangup_pending_stops{{{BACKEND}}}",
            },
        ),
        Panel(
            "Time from hang-up to confirmed stop",
            "s",
            8,
            {f"p{q}": f"histogram_quantile(0.{q}, sum by (le) ({RELEASES}))" for q in (50, 99)},
        ),
        Panel(
            "Abort requests",
            "reqps",
            8,
            {"{{result}}": f"sum by (result) (rate(hangup_aborts_total{{{ALL}}}[$__rate_interval]))"},
        ),
    ],
    "Jobs and the gateway itself": [
        Panel("Job items", "short", 8, {"{{state}}": f"sum by (state) (hangup_job_items{{{ALL}}})"}),
        Panel(
            "Job items ended",
            "reqps",
            8,
            {"{{result}}": f"sum by (result) (rate(hangup_job_items_ended_total{{{ALL}}}[$__rate_interval]))"},
        ),
        Panel(
            "Event loop lag p99",
            "s",
            8,
            {
                "{{instance}}": (
                    "histogram_quantile(0.99, sum by (le, instance)"
                    f" (rate(hangup_loop_lag_seconds_bucket{{{ALL}}}[$__rate_interval])))"
                )
            },
        ),
        Panel(
            "CPU",
            "percentunit",
            8,
            {"{{instance}}": f"rate(process_cpu_seconds_total{{{ALL}}}[$__rate_interval])"},
            doc="1 is a whole core",
        ),
        Panel("Memory", "bytes", 8, {"{{instance}}": f"process_resident_memory_bytes{{{ALL}}}"}),
        Panel(
            "File descriptors",
            "short",
            8,
            {"open {{instance}}": f"process_open_fds{{{ALL}}}", "limit {{instance}}": f"process_max_fds{{{ALL}}}"},
        ),
    ],
}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": 24, "x": 0, "y": y}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        )
        x, y, height = 0, y + 1, 0
        for panel in row:
            if x + panel.width > 24:
                x, y, height = 0, y + height, 0
            place = {"h": panel.height, "w": panel.width, "x": x, "y": y}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return {
        "uid": "hangup",
        "title": "hangup",
        "tags": ["llm", "inference"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(name, query) for name, query in VARIABLES.items())]},
        "panels": panels,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    is_table = panel.kind == "table"
    steps = [{"color": colour, "value": None if at == 0 else at} for at, colour in panel.steps.items()]
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if steps:
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    targets = [
        {"refId": chr(65 + at), "expr": expression, "legendFormat": legend}
        | (
            {"format": "table", "instant": True}
            if is_table
            else {"instant": True}
            if panel.kind == "stat"
            else {"exemplar": True}
        )
        for at, (legend, expression) in enumerate(panel.targets.items())
    ]
    shown = {"type": panel.kind, "title": panel.title, "description": panel.doc, "datasource": SOURCE, "targets": targets}
    if not is_table:
        return shown | {"fieldConfig": {"defaults": defaults, "overrides": []}}
    names = {f"Value #{target['refId']}": target["legendFormat"] for target in targets}
    units = {"calls/s": "reqps", "not served": "percentunit", "first token p99": "s", "queue p99": "s"}
    overrides = [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": unit}]}
        for name, unit in units.items()
    ]
    organize = {"excludeByName": {"Time": True}, "renameByName": names}
    return shown | {
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}],
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(dashboard(), indent=1) + "\n")
