"""`hangup probe`: finds out what an endpoint does when its clients hang up, from outside.

`cases` are the departures; `verdict`, `echo` and `usage` decide, as pure functions; `connection`, `caller`, `stage` and `watch`
do the I/O; `by_figures`, `by_echo` and `by_usage` play one case; `session` is the whole. It needs no other package.
"""

from hangup.probe.cases import CASES, Case, Company, Departure, Moment
from hangup.probe.endpoint import ProbeError
from hangup.probe.report import CaseResult, ProbeReport, sentence
from hangup.probe.session import ProbeOptions, run_probe
from hangup.probe.verdict import Judgement, Ruling

__all__ = [
    "CASES",
    "Case",
    "CaseResult",
    "Company",
    "Departure",
    "Judgement",
    "Moment",
    "ProbeError",
    "ProbeOptions",
    "ProbeReport",
    "Ruling",
    "run_probe",
    "sentence",
]
