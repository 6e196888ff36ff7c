"""Markdown: a table for one endpoint, or all endpoints side by side."""

from __future__ import annotations

from collections.abc import Sequence

from hangup.probe.cases import CASES
from hangup.probe.report import ProbeReport, Traffic, outcome, reason, sentence
from hangup.probe.verdict import Judgement, Ruling

MARKS = {
    Ruling.STOPPED: "✓",
    Ruling.LATE: "late",
    Ruling.PARTLY: "✗",
    Ruling.NEVER: "✗",
    Ruling.UNTOLD: "?",
    Ruling.BROKE: "✗ broke",
}


def markdown(reports: Sequence[ProbeReport], traffic: Traffic | None = None) -> str:
    parts = [_one(report, traffic) for report in reports]
    return "\n".join([*parts, *([side_by_side(reports)] if len(reports) > 1 else [])])


def _one(report: ProbeReport, traffic: Traffic | None) -> str:
    rows = [
        f"| {_cell(result.case.text)} | {_cell(outcome(result.judgement))} | {_cell(reason(result.judgement))} |"
        for result in report.results
    ]
    lines = [f"## {_cell(report.title)}", "", _cell(sentence(report, traffic)), "", _cell(facts(report)), ""]
    lines += ["| the client leaves | verdict | evidence |", "| -- | -- | -- |", *rows, ""]
    lines += [f"- {_cell(note)}" for note in report.notes]
    return "\n".join(lines) + "\n"


def facts(report: ProbeReport) -> str:
    """Return what the figures belong to: version, model, date, command."""
    said = [report.version or report.url, f"{report.api} API", f"model {report.model or '(default)'}", report.date]
    speed = f"{report.answer_tokens} tokens an answer at {report.rate:g} a second"
    return "; ".join([*said, f"hangup {report.hangup_version}", speed, f"evidence: {report.evidence}", f"`{report.command}`"])


def side_by_side(reports: Sequence[ProbeReport]) -> str:
    """Return one table: cases down, endpoints across."""
    found = [{result.case.name: result.judgement for result in report.results} for report in reports]
    names = [name for name in CASES if any(name in rows for rows in found)]
    lines = ["| the client leaves | " + " | ".join(_cell(report.title) for report in reports) + " |"]
    lines.append("| -- |" + " -- |" * len(reports))
    for name in names:
        case = CASES[name]
        shown = "" if case.counts else " (shown only)"
        lines.append(f"| {case.text}{shown} | " + " | ".join(brief(rows.get(name)) for rows in found) + " |")
    burnt = [report.burnt_per_departure for report in reports]
    lines.append("| **tokens per departure** | " + " | ".join("–" if b is None else f"**{b:.0f}**" for b in burnt) + " |")
    return "\n".join(lines) + "\n"


def brief(judgement: Judgement | None) -> str:
    """Return a verdict as the cell of a wide table."""
    if judgement is None:
        return "–"
    mark = "(✓)" if judgement.is_vague else MARKS[judgement.ruling]
    match judgement.ruling:
        case Ruling.STOPPED | Ruling.LATE if judgement.stopped_s is not None:
            return f"{mark} {judgement.stopped_s:.2f} s"
        case Ruling.PARTLY:
            return f"{mark} {judgement.ran_on}/{judgement.departed}"
        case Ruling.NEVER if judgement.tokens is not None:
            return f"{mark} {judgement.tokens / max(judgement.departed, 1):.0f} tokens"  # of one client
        case _:
            return mark


def _cell(text: str) -> str:
    """Return text that is safe in a cell: a name from outside must not break the table, or become markup."""
    flat = " ".join(text.split())
    return flat.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")
