"""Writes deploy/grafana/hangup.json: the panels are listed here, and the rest of what Grafana needs is generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "hangup.json"
# Title, unit, width in 24ths, expressions by legend.
PANELS: list[tuple[str, str, int, dict[str, str]]] = [
    (
        "Tokens computed and received",
        "short",
        16,
        {
            "computed by {{backend}}": "sum by (backend) (rate(hangup_backend_tokens_computed_total[1m]))",
            "received from {{backend}}": "sum by (backend) (rate(hangup_output_tokens_total[1m]))",
        },
    ),
    ("Divergence alarm", "short", 8, {"{{backend}}": "hangup_divergence_alarm"}),
    ("Engines busy", "percentunit", 8, {"{{backend}}": "hangup_backend_busy_ratio"}),
    ("Live calls", "short", 8, {"{{phase}}": "sum by (phase) (hangup_calls_live)", "queue": "sum(hangup_queue_depth)"}),
    ("Calls by outcome", "reqps", 8, {"{{outcome}}": "sum by (outcome) (rate(hangup_calls_total[1m]))"}),
    ("Refusals by cause", "reqps", 8, {"{{cause}}": 'sum by (cause) (rate(hangup_calls_total{outcome=~"shed|refused"}[1m]))'}),
    ("Output tokens by result", "short", 8, {"{{result}}": "sum by (result) (rate(hangup_output_tokens_total[1m]))"}),
    ("Output tokens by tenant", "short", 8, {"{{tenant}}": "sum by (tenant) (rate(hangup_output_tokens_total[1m]))"}),
    (
        "Time to first token",
        "s",
        8,
        {f"p{q}": f"histogram_quantile(0.{q}, sum by (le) (rate(hangup_first_token_seconds_bucket[5m])))" for q in (50, 99)},
    ),
    (
        "Queue time",
        "s",
        8,
        {f"p{q}": f"histogram_quantile(0.{q}, sum by (le) (rate(hangup_queue_seconds_bucket[5m])))" for q in (50, 99)},
    ),
    (
        "Calls in flight and limit",
        "short",
        8,
        {"{{backend}}": "hangup_backend_in_flight", "limit {{backend}}": "hangup_backend_limit"},
    ),
    (
        "Backend state: up, drained, quarantined",
        "short",
        8,
        {
            "up {{backend}}": "hangup_backend_up",
            "drained {{backend}}": "hangup_backend_drained",
            "quarantined {{backend}}": "hangup_backend_quarantined",
        },
    ),
    (
        "Zombies and pending stops",
        "short",
        8,
        {"zombies {{backend}}": "hangup_zombies", "pending {{backend}}": "hangup_pending_stops"},
    ),
    (
        "Time from hang-up to confirmed stop",
        "s",
        8,
        {f"p{q}": f"histogram_quantile(0.{q}, sum by (le) (rate(hangup_release_seconds_bucket[5m])))" for q in (50, 99)},
    ),
    ("Job items", "short", 8, {"{{state}}": "sum by (state) (hangup_job_items)"}),
    ("Job items ended", "reqps", 8, {"{{result}}": "sum by (result) (rate(hangup_job_items_ended_total[1m]))"}),
    ("Abort requests", "reqps", 8, {"{{result}}": "sum by (result) (rate(hangup_aborts_total[1m]))"}),
    (
        "Event loop lag p99",
        "s",
        8,
        {"{{instance}}": "histogram_quantile(0.99, sum by (le, instance) (rate(hangup_loop_lag_seconds_bucket[5m])))"},
    ),
]


def dashboard() -> dict[str, Any]:
    panels, x, y = [], 0, 0
    for number, (title, unit, width, expressions) in enumerate(PANELS, 1):
        if x + width > 24:
            x, y = 0, y + 8
        panels.append(
            {
                "id": number,
                "type": "timeseries",
                "title": title,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {"h": 8, "w": width, "x": x, "y": y},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(65 + at), "expr": expression, "legendFormat": legend}
                    for at, (legend, expression) in enumerate(expressions.items())
                ],
            }
        )
        x += width
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "uid": "hangup",
        "title": "hangup",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(dashboard(), indent=1) + "\n")
