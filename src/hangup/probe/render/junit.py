"""JUnit's XML, for CI systems: a case that is at fault fails, one that cannot be told is skipped."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

from hangup.probe.report import CaseResult, ProbeReport, outcome, reason
from hangup.probe.verdict import Ruling


def junit(reports: Sequence[ProbeReport]) -> str:
    suites = "".join(map(_suite, reports))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="hangup probe">\n{suites}</testsuites>\n'


def _suite(report: ProbeReport) -> str:
    skipped = sum(result.judgement.ruling is Ruling.UNTOLD for result in report.results)
    counts = f'tests="{len(report.results)}" failures="{len(report.faults)}" skipped="{skipped}" time="{report.seconds:g}"'
    cases = "".join(_case(report, result) for result in report.results)
    return f"  <testsuite name={_attribute(report.title)} {counts}>\n{_properties(report)}{cases}  </testsuite>\n"


def _properties(report: ProbeReport) -> str:
    """Return what the verdicts belong to."""
    names = ("url", "version", "api", "model", "date", "command", "hangup_version", "evidence")
    rows = (f'<property name="{name}" value={_attribute(getattr(report, name))}/>' for name in names)
    return f"    <properties>{''.join(rows)}</properties>\n"


def _case(report: ProbeReport, result: CaseResult) -> str:
    name = f"    <testcase classname={_attribute(report.title)} name={_attribute(result.case.name)}"
    said = _attribute(f"{outcome(result.judgement)}: {reason(result.judgement)}")
    if result.is_fault:
        return f'{name}><failure type="{result.judgement.ruling.name.lower()}" message={said}/></testcase>\n'
    if result.judgement.ruling is Ruling.UNTOLD:
        return f"{name}><skipped message={said}/></testcase>\n"
    return f"{name}/>\n"


def _attribute(text: str) -> str:
    return quoteattr("".join(c if c.isprintable() else "?" for c in text))
