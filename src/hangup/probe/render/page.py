"""One HTML page that needs nothing else: the sentence, a plot of what each departure costs, the table, the facts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hangup.probe.render.markdown import brief, facts
from hangup.probe.report import CaseResult, ProbeReport, Traffic, outcome, reason, sentence
from hangup.probe.verdict import Ruling

COLOURS = {
    Ruling.STOPPED: "#2e7d32",
    Ruling.LATE: "#b26a00",
    Ruling.PARTLY: "#c62828",
    Ruling.NEVER: "#c62828",
    Ruling.UNTOLD: "#8a8a8a",
    Ruling.BROKE: "#6a1b9a",
}
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884; }
.verdict { font-size: 1.2rem; } .facts, .shown { opacity: .75; font-size: .9rem; } .wide { overflow-x: auto; }
svg text { fill: currentColor; font: 13px system-ui, sans-serif; }
"""
_ROW, _LEFT, _PLOT, _RIGHT = 24, 240, 480, 180


def page(reports: Sequence[ProbeReport], traffic: Traffic | None = None) -> str:
    title = "hangup probe: " + (reports[0].title if len(reports) == 1 else f"{len(reports)} endpoints")
    matrix = _matrix(reports) if len(reports) > 1 else ""
    body = "".join(_section(report, traffic) for report in reports)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{matrix}{body}</body></html>\n"
    )


def _section(report: ProbeReport, traffic: Traffic | None) -> str:
    rows = "".join(_table_row(result) for result in report.results)
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return (
        f'<section><h2>{escape(report.title)}</h2>\n<p class="verdict">{escape(sentence(report, traffic))}</p>\n'
        f"{plot(report)}\n<table><thead><tr><th>the client leaves</th><th>verdict</th><th>evidence</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>\n{f'<ul>{notes}</ul>' if notes else ''}"
        f'<p class="facts">{escape(facts(report))}</p></section>\n'
    )


def _table_row(result: CaseResult) -> str:
    colour = COLOURS[result.judgement.ruling]
    return (
        f"<tr><td>{_described(result)}</td>"
        f'<td style="color:{colour}"><b>{escape(outcome(result.judgement))}</b></td>'
        f'<td class="facts">{escape(reason(result.judgement))}</td></tr>'
    )


def _described(result: CaseResult) -> str:
    shown = "" if result.case.counts else ' <span class="shown">(shown only)</span>'
    return escape(result.case.text) + shown


def plot(report: ProbeReport) -> str:
    """Draw a bar per case: the share of an abandoned answer that was computed for nobody."""
    height = _ROW * len(report.results) + 50
    bars = "".join(_bar(report, result, index) for index, result in enumerate(report.results))
    ticks = "".join(
        f'<text x="{_LEFT + _PLOT * share:g}" y="{height - 26}" text-anchor="middle">{share:.0%}</text>'
        for share in (0, 0.5, 1)
    )
    label = "tokens computed after the client left, as a share of the answer"
    caption = f'<text x="{_LEFT}" y="{height - 6}">{label}</text>'
    return (
        f'<svg viewBox="0 0 {_LEFT + _PLOT + _RIGHT} {height}" width="100%" role="img" aria-label="{label}">'
        f"<title>{label}</title>{bars}{ticks}{caption}</svg>"
    )


def _bar(report: ProbeReport, result: CaseResult, index: int) -> str:
    judgement, y = result.judgement, index * _ROW
    asked = report.answer_tokens * max(judgement.departed, 1)
    share = 0.0 if judgement.tokens is None else min(judgement.tokens / max(asked, 1), 1.0)
    width = max(share * _PLOT, 2.0)
    return (
        f'<text x="{_LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(result.case.name)}</text>'
        f'<rect x="{_LEFT}" y="{y + 4}" width="{width:.1f}" height="{_ROW - 8}" fill="{COLOURS[judgement.ruling]}"/>'
        f'<text x="{_LEFT + width + 8:.1f}" y="{y + 16}">{escape(brief(judgement))}</text>'
    )


def _matrix(reports: Sequence[ProbeReport]) -> str:
    head = "".join(f"<th>{escape(report.title)}</th>" for report in reports)
    found = [{result.case.name: result for result in report.results} for report in reports]
    names = {result.case.name: _described(result) for report in reports for result in report.results}
    rows = ""
    for name, text in names.items():
        cells = "".join(_matrix_cell(row.get(name)) for row in found)
        rows += f"<tr><td>{text}</td>{cells}</tr>"
    top = f"<thead><tr><th>the client leaves</th>{head}</tr></thead>"
    return f'<div class="wide"><table>{top}<tbody>{rows}</tbody></table></div>\n'


def _matrix_cell(result: CaseResult | None) -> str:
    if result is None:
        return "<td>–</td>"
    return f'<td style="color:{COLOURS[result.judgement.ruling]}">{escape(brief(result.judgement))}</td>'
