"""What `hangup probe` prints and writes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hangup.cli.table import printable, table
from hangup.errors import ConfigError

STDOUT = "-"


def add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write all figures as JSON; -: to stdout, instead of the table")


def write_outputs(arguments: argparse.Namespace, reports: list[Any], traffic: Any) -> None:
    """Print the table and the verdict, and write the files that were asked for."""
    if arguments.json != STDOUT:
        for report in reports:
            print(text_report(report, traffic))
    if arguments.json:
        rows = [report.as_json() for report in reports]
        _write(arguments.json, json.dumps(rows[0] if len(rows) == 1 else rows, indent=2) + "\n")


def text_report(report: Any, traffic: Any) -> str:
    from hangup.probe.report import outcome, reason, sentence  # noqa: PLC0415

    rows = [
        [result.case.name, outcome(result.judgement), "" if result.case.counts else "shown only", reason(result.judgement)]
        for result in report.results
    ]
    lines = table(["CASE", "VERDICT", "", "EVIDENCE"], printable(rows))
    lines += [f"note: {printable(note)}" for note in report.notes]
    return "\n".join([*lines, "", printable(sentence(report, traffic))])


def _write(name: str, text: str) -> None:
    if name == STDOUT:
        print(text, end="")
        return
    try:
        Path(name).write_text(text)
    except OSError as error:
        raise ConfigError([f"{name}: {error.strerror}"]) from None
