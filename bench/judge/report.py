"""Formats the judges' results as tables."""

from __future__ import annotations

import math
from typing import Any

from bench.judge.scenarios import BOUND_PER_S, SCENARIOS

TITLES = {"aiperf": "AIPerf", "guidellm": "GuideLLM"}
HEAD = (
    "| path | completed | not completed | good/s | first token p50, p99 | whole answer p50 "
    "| engine's tokens | of them in vain | after all clients had left |"
)


def line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"FAILED: {row['failed']}"
    return (
        f"{row['completed']} completed, {_errors(row['errors'])} not, {_good(row)} good/s, "
        f"first token {_s(row['first_token_p50_s'])}, "
        f"{row['tokens_in_vain']} of {row['engine_tokens']} tokens in vain"
    )


def markdown(rows: list[dict[str, Any]]) -> str:
    parts = []
    for scenario in SCENARIOS.values():
        for tool, title in TITLES.items():
            found = [row for row in rows if (row["tool"], row["scenario"]) == (tool, scenario.name)]
            if found:
                table = [HEAD, "|---" * (HEAD.count("|") - 1) + "|", *map(_table_row, found)]
                bound = f" (at most {BOUND_PER_S:.2f} good/s)" if scenario.rate > BOUND_PER_S else ""
                parts.append(f"**{title}, {scenario.title}**{bound}\n\n" + "\n".join(table) + "\n")
    return "\n".join(parts)


def _table_row(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"| {row['path']} | failed: {row['failed'].replace('|', '/')} | | | | | | | |"
    first = f"{_s(row['first_token_p50_s'])}, {_s(row['first_token_p99_s'])}"
    cells = [row["path"], row["completed"], _errors(row["errors"]), _good(row), first, _s(row["latency_p50_s"])]
    cells += [row["engine_tokens"], row["tokens_in_vain"], row["tokens_after_all_left"]]
    return "| " + " | ".join(map(str, cells)) + " |"


def _good(row: dict[str, Any]) -> str:
    """Return good answers per second and, if the load exceeds the engine's capacity, their share of that capacity."""
    good = float(row["good_per_s"])
    scenario = SCENARIOS[row["scenario"]]
    if scenario.rate * (1 - scenario.cancelled) <= BOUND_PER_S:
        return f"{good:.2f}"
    return f"{good:.2f} ({good / BOUND_PER_S:.2f} of the bound; {row['good']} of the {row['possible']} that a run allows)"


def _errors(errors: dict[str, int]) -> str:
    if not errors:
        return "0"
    return f"{sum(errors.values())} ({', '.join(f'{count} × {name}' for name, count in sorted(errors.items()))})"


def _s(seconds: float) -> str:
    return "–" if math.isnan(seconds) else f"{seconds:.2f} s"
