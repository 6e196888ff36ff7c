"""The result of a probe, and what it says in one sentence. Data and pure functions."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from hangup.probe.cases import Case
from hangup.probe.verdict import FAULTS, FIGURES, Judgement, Ruling


@dataclass(frozen=True, slots=True)
class CaseResult:
    case: Case
    judgement: Judgement

    @property
    def is_fault(self) -> bool:
        return self.judgement.ruling is Ruling.BROKE or (self.case.counts and self.judgement.ruling in FAULTS)

    def as_json(self) -> dict[str, Any]:
        judgement = asdict(self.judgement) | {"ruling": self.judgement.ruling.value}
        case = {"case": self.case.name, "moment": self.case.moment.value, "departure": self.case.departure.value}
        return {**case, "company": self.case.company.value, "counts": self.case.counts, **judgement}


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Everything that was found at one endpoint."""

    url: str
    api: str
    model: str
    version: str  # what the endpoint says of itself
    date: str
    command: str
    hangup_version: str
    evidence: str  # where verdicts come from
    answer_tokens: int
    rate: float  # tokens a second of one stream
    first_token_s: float
    slots: int  # 0: unknown
    calls: int
    tokens: int
    seconds: float
    results: tuple[CaseResult, ...]
    notes: tuple[str, ...] = field(default=())
    name: str = ""

    @property
    def title(self) -> str:
        return self.name or self.url

    @property
    def counted(self) -> list[CaseResult]:
        """The cases that can be a fault, and could be told."""
        return [result for result in self.results if result.case.counts and result.judgement.ruling is not Ruling.UNTOLD]

    @property
    def faults(self) -> list[CaseResult]:
        return [result for result in self.results if result.is_fault]

    @property
    def burnt_per_departure(self) -> float | None:
        """How many tokens the stack computes for a client that has left, as the mean of the cases that count."""
        shares = [
            result.judgement.tokens / max(result.judgement.departed, 1)
            for result in self.counted
            if result.judgement.tokens is not None
        ]
        return sum(shares) / len(shares) if shares else None

    def as_json(self) -> dict[str, Any]:
        row = asdict(self)
        row["results"] = [result.as_json() for result in self.results]
        row["notes"] = list(self.notes)
        return row | {"tokens_per_departure": self.burnt_per_departure, "verdict": sentence(self)}


@dataclass(frozen=True, slots=True)
class Traffic:
    """The user's own traffic, to say what a fault costs."""

    departures_a_day: float = 0.0
    price: float = 0.0  # per million tokens


def sentence(report: ProbeReport, traffic: Traffic | None = None) -> str:
    """Say in one sentence what was found, and in a second what that costs a day."""
    counts = Counter(result.judgement.ruling for result in report.counted)
    total = len(report.counted)
    if not total:
        text = "Nothing can be said: no case could be told."
    elif not report.faults:
        text = f"{report.title} stops in all {total} cases that could be told{_worst(report)}{_open(report)}."
    else:
        parts = [f"{counts[ruling]} × {ruling.value}" for ruling in FAULTS if counts[ruling]]
        if not parts:
            parts = [f"{len(report.faults)} × {Ruling.BROKE.value}"]
        text = f"{report.title} stops in {counts[Ruling.STOPPED]} of {total} cases; {', '.join(parts)}{_open(report)}."
    burnt = report.burnt_per_departure
    if burnt is not None:
        tokens = f"{burnt:.0f}" if burnt >= 10 else f"{burnt:.1f}"
        text += f" A client that leaves costs {tokens} tokens on average, of answers of {report.answer_tokens}."
    if burnt is not None and traffic is not None and traffic.departures_a_day:
        a_day = burnt * traffic.departures_a_day
        money = f", {a_day * traffic.price / 1e6:,.2f} a day at {traffic.price:g} per million" if traffic.price else ""
        text += f" At {traffic.departures_a_day:,.0f} departures a day that is {a_day:,.0f} tokens for nobody{money}."
    return text


def _open(report: ProbeReport) -> str:
    """Say how many of the cases that count could not be told: without them, a verdict seems better than it is."""
    count = sum(result.case.counts and result.judgement.ruling is Ruling.UNTOLD for result in report.results)
    return f"; {count} cannot be told" if count else ""


def _worst(report: ProbeReport) -> str:
    times = [result.judgement.stopped_s for result in report.counted if result.judgement.stopped_s is not None]
    return f", within {max(times):.2f} s" if times else ""


def outcome(judgement: Judgement) -> str:
    """Return the verdict of a case in a few words."""
    tokens = "" if judgement.tokens is None else f", {'' if judgement.tokens_counted else '~'}{judgement.tokens} tokens"
    tokens = ", 1 token" if tokens == ", 1 tokens" else tokens
    tokens += f" of {judgement.departed} clients" if tokens and judgement.departed > 1 else ""
    took = "" if judgement.stopped_s is None else f" within {judgement.stopped_s:.2f} s"
    match judgement.ruling:
        case Ruling.STOPPED | Ruling.LATE:
            return f"{'' if judgement.ruling is Ruling.STOPPED else 'late: '}stopped{took}{tokens}"
        case Ruling.PARTLY:
            return f"{judgement.ran_on} of {judgement.departed} never stopped{tokens}"
        case Ruling.NEVER:
            return f"never stopped{tokens}"
        case _:
            return judgement.ruling.value


def reason(judgement: Judgement) -> str:
    """Return the evidence and the notes of a case."""
    sure = f" ({judgement.confidence:.1%} sure)" if judgement.confidence < 1 else ""
    return "; ".join((judgement.evidence + sure, *judgement.notes))


def remarks(judgement: Judgement) -> str:
    """Return what a reader of all verdicts must know of this one: notes, and the evidence unless it is the best."""
    return reason(judgement).removeprefix(FIGURES).removeprefix("; ")
