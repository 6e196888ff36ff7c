"""A badge: how many of the cases stop, as a small SVG."""

from __future__ import annotations

from html import escape

from hangup.probe.report import ProbeReport
from hangup.probe.verdict import Ruling

GREEN, AMBER, RED, GREY = "#2e7d32", "#b26a00", "#c62828", "#6b6b6b"
_LABEL = "stops on hang-up"
_LETTER = 6.6  # pixels, about, in this font


def badge(report: ProbeReport) -> str:
    text, colour = _message(report)
    left, right = round(len(_LABEL) * _LETTER) + 12, round(len(text) * _LETTER) + 12
    font = 'font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" fill="#fff" text-anchor="middle"'
    label, message = escape(_LABEL), escape(text)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" '
        f'role="img" aria-label="{label}: {message}">'
        f"<title>{label}: {message}</title>"
        f'<rect width="{left}" height="20" fill="#444"/><rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        f'<g {font}><text x="{left / 2:g}" y="14">{label}</text>'
        f'<text x="{left + right / 2:g}" y="14">{message}</text></g></svg>\n'
    )


def _message(report: ProbeReport) -> tuple[str, str]:
    total = len(report.counted)
    if not total:
        return "cannot be told", GREY
    if any(result.judgement.ruling is Ruling.BROKE for result in report.results):
        return "broke", RED
    stopped = sum(result.judgement.ruling is Ruling.STOPPED for result in report.counted)
    late = sum(result.judgement.ruling is Ruling.LATE for result in report.counted)
    colour = GREEN if stopped == total else AMBER if stopped + late == total else RED
    return f"{stopped} of {total}", colour
