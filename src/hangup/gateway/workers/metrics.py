"""Adds up the workers' metrics. Counters never fall: what a worker had counted when it ended stays in the sum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

# Gauges that describe the same thing in every worker: they are not added up.
_MOST = frozenset(
    [
        "hangup_backend_busy_ratio",
        "hangup_backend_limited_by",
        "hangup_backend_quarantined",
        "hangup_backend_tokens_computed_total",
        "hangup_build_info",
        "hangup_divergence_alarm",
        "hangup_job_store_failing",
        'hangup_job_items{state="queued"}',
        "hangup_jobs",
        "hangup_gateways",
        "hangup_shared_state_failing",
        "hangup_loop_stall_max_seconds",
        "hangup_orphans",
        "hangup_thread_busy_seconds",
    ]
)
_LEAST = frozenset(["hangup_backend_drained", "hangup_backend_up", "process_max_fds", "process_start_time_seconds"])


@dataclass(slots=True)
class Family:
    """A metric with its samples, by name and labels."""

    head: list[str] = field(default_factory=list)  # its HELP and TYPE lines
    is_gauge: bool = False
    samples: dict[str, float] = field(default_factory=dict)


Families = dict[str, Family]


def parse(page: str) -> Families:
    """Read a metrics page of ours."""
    families: Families = {}
    family = Family()
    for line in page.split("\n"):  # not splitlines: a label may hold other line separators
        if line.startswith("#"):
            _, what, name, rest = line.split(" ", 3)
            family = families.setdefault(name, Family())
            family.head.append(line)
            family.is_gauge = family.is_gauge or (what == "TYPE" and rest == "gauge")
        elif line:
            key, _, value = line.rpartition(" ")
            family.samples[key] = float(value)
    return families


def merge(pages: Iterable[Families]) -> Families:
    """Return one page for all workers."""
    merged: Families = {}
    for page in pages:
        for name, family in page.items():
            into = merged.setdefault(name, Family(family.head, family.is_gauge))
            for key, value in family.samples.items():
                combine = max if name in _MOST or key in _MOST else min if name in _LEAST else _plus
                before = into.samples.get(key)
                into.samples[key] = value if before is None else combine(before, value)
    return merged


def _plus(a: float, b: float) -> float:
    return a + b


def counters_of(page: Families) -> Families:
    """Return what stays of a worker that has ended: its counters."""
    return {name: family for name, family in page.items() if not family.is_gauge}


def render(families: Families) -> str:
    lines = []
    for family in families.values():
        lines += family.head
        lines += [f"{key} {_number(value)}" for key, value in family.samples.items()]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(value)
