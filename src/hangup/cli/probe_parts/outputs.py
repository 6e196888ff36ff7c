"""What `hangup probe` prints and writes."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

from hangup.cli.table import Column, for_stdout, printable
from hangup.errors import ConfigError
from hangup.terminal import cells, is_coloured, paint

STDOUT = "-"
_STYLES = {"STOPPED": "green", "LATE": "yellow", "PARTLY": "red", "NEVER": "red", "UNTOLD": "dim", "BROKE": "red"}


def add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write all figures as JSON; -: to stdout, instead of the table")
    parser.add_argument("--html", metavar="FILE", help="write one HTML page that needs nothing else")
    parser.add_argument("--markdown", metavar="FILE", help="write Markdown tables")
    parser.add_argument("--badge", metavar="FILE", help="write a badge as SVG (one endpoint only)")
    parser.add_argument("--junit", metavar="FILE", help="write JUnit XML: faults fail, what cannot be told is skipped")


def write_outputs(arguments: argparse.Namespace, reports: list[Any], traffic: Any) -> None:
    """Print the table and the verdict, and write the files that were asked for."""
    if arguments.json != STDOUT:
        print("\n\n".join([*(text_report(report, traffic) for report in reports), *side_by_side(reports)]))
    if arguments.json:
        rows = [report.as_json() for report in reports]
        _write(arguments.json, json.dumps(rows[0] if len(rows) == 1 else rows, indent=2) + "\n")
    _write_shared(arguments, reports, traffic)


def _write_shared(arguments: argparse.Namespace, reports: list[Any], traffic: Any) -> None:
    from hangup.probe.render.badge import badge  # noqa: PLC0415
    from hangup.probe.render.junit import junit  # noqa: PLC0415
    from hangup.probe.render.markdown import markdown  # noqa: PLC0415
    from hangup.probe.render.page import page  # noqa: PLC0415

    if arguments.html:
        _write(arguments.html, page(reports, traffic))
    if arguments.markdown:
        _write(arguments.markdown, markdown(reports, traffic))
    if arguments.badge:
        _write(arguments.badge, badge(reports[0]))
    if arguments.junit:
        _write(arguments.junit, junit(reports))


def text_report(report: Any, traffic: Any) -> str:
    """Return the table, the notes, what the figures belong to, and the verdict; all of it as wide as the terminal."""
    from hangup.probe.render.markdown import facts  # noqa: PLC0415
    from hangup.probe.report import sentence  # noqa: PLC0415

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    coloured = is_coloured(sys.stdout)
    head = [paint(printable(report.name), "bold", coloured), ""] if report.name else []
    lines = [*head, *result_lines(report.results, width, coloured=coloured)]
    texts = [*(f"note: {note}" for note in report.notes), f"figures of: {facts(report)}", "", sentence(report, traffic)]
    return "\n".join([*lines, *(line for text in texts for line in _wrapped(printable(text), width))])


def side_by_side(reports: list[Any]) -> list[str]:
    """Return a table of several endpoints, if there are several: cases down, endpoints across."""
    from hangup.probe.cases import CASES  # noqa: PLC0415
    from hangup.probe.render.markdown import brief  # noqa: PLC0415

    if len(reports) < 2:
        return []
    found = [{result.case.name: result.judgement for result in report.results} for report in reports]
    columns = [Column("CASE"), *(Column(printable(report.title), least=8) for report in reports)]
    rows = [[name, *(brief(row.get(name)) for row in found)] for name in CASES if any(name in row for row in found)]
    return ["\n".join(for_stdout(columns, rows))]


def result_lines(results: Any, width: int, *, coloured: bool = False) -> list[str]:
    """Return a line for each case; what does not fit the width comes below it. 0: a line may have any length."""
    from hangup.probe.report import outcome, remarks  # noqa: PLC0415

    rows = [
        (
            result.case.name,
            outcome(result.judgement) + ("" if result.case.counts else " (shown only)"),
            printable(remarks(result.judgement)),
            _STYLES[result.judgement.ruling.name],
        )
        for result in results
    ]
    names, verdicts = (max(map(len, column)) for column in zip(*(row[:2] for row in rows), ("CASE", "VERDICT"), strict=True))
    heads = f"{'CASE':<{names}}  {'VERDICT':<{verdicts}}  REMARKS"
    lines = [paint(heads if not width or len(heads) <= width else heads[: names + 9], "bold", coloured)]
    for name, verdict, remark, style in rows:
        fits = not width or names + verdicts + 4 + cells(remark) <= width
        shown = paint(verdict.ljust(verdicts) if remark and fits else verdict, style, coloured)
        lines.append(f"{name:<{names}}  {shown}" + (f"  {remark}" if remark and fits else ""))
        lines += [] if fits else _wrapped(remark, width, " " * (names + 2))
    return lines


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    if not width or not text:
        return [indent + text]
    return textwrap.wrap(text, max(width, 40), initial_indent=indent, subsequent_indent=indent or "  ", break_on_hyphens=False)


def check_outputs(arguments: argparse.Namespace) -> list[str]:
    """Return what is wrong with the files to write; a probe of minutes must not end in such an error."""
    flags = ("json", "html", "markdown", "badge", "junit")
    names = {flag: getattr(arguments, flag) for flag in flags if getattr(arguments, flag) not in (None, STDOUT)}
    problems = [
        f"--{flag} {name}: there is no folder {Path(name).parent}" for flag, name in names.items() if not _has_folder(name)
    ]
    problems += [f"--{flag} {name}: this is a folder" for flag, name in names.items() if Path(name).is_dir()]
    return [*problems, "--badge: give one URL, not --matrix"] if arguments.badge and arguments.matrix else problems


def _has_folder(name: str) -> bool:
    return Path(name).parent.is_dir()


def _write(name: str, text: str) -> None:
    if name == STDOUT:
        print(text, end="")
        return
    try:
        Path(name).write_text(text, encoding="utf-8", errors="backslashreplace")  # a server may send half of a character
    except OSError as error:
        raise ConfigError([f"{name}: {error.strerror}"]) from None
