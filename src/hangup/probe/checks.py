"""Assertions on a report, for the tests of an engine or a gateway."""

from __future__ import annotations

from hangup.probe.cases import Moment
from hangup.probe.report import CaseResult, ProbeReport, outcome, reason
from hangup.probe.verdict import Ruling


def assert_stops(report: ProbeReport, within_s: float = 1.0, *, untold: bool = False) -> None:
    """Raise `AssertionError` unless every case that counts stopped within `within_s`, and nothing broke.

    A case that cannot be told is a failure as well, unless `untold` allows it.
    """
    __tracebackhide__ = True  # in pytest, the message is all that helps
    failed = [result for result in report.results if not _holds(result, within_s, untold)]
    if failed or not report.counted:
        lines = [f"  {r.case.name}: {outcome(r.judgement)} ({reason(r.judgement)})" for r in failed]
        head = f"{report.title} does not stop within {within_s:g} s in every phase:" if failed else "no case could be told"
        raise AssertionError("\n".join([head, *lines]))


def _holds(result: CaseResult, within_s: float, untold: bool) -> bool:
    ruling, stopped_s = result.judgement.ruling, result.judgement.stopped_s
    if ruling is Ruling.BROKE:
        return False
    if not result.case.counts:
        return True
    if ruling is Ruling.UNTOLD:
        return untold
    is_free = not result.judgement.tokens and result.case.moment is not Moment.PREFILL  # a call that waits costs nothing
    return ruling is Ruling.STOPPED and (stopped_s is None or stopped_s <= within_s or is_free)
