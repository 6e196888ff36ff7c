"""The departures that a probe plays: when a client leaves, how it leaves, and in which company. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Moment(StrEnum):
    """When the client leaves."""

    UPLOAD = "upload"  # in the midst of its request's body
    QUEUE = "queue"  # while it waits for a slot
    PREFILL = "prefill"  # before the first token
    STREAM = "stream"  # between two tokens
    WHOLE = "whole"  # while it waits for an answer that does not stream
    KEEP_ALIVE = "keep-alive"  # in a stream that is the second call of its connection
    PIPELINED = "pipelined"  # in a stream, with another request already sent behind it


class Departure(StrEnum):
    """How the client leaves."""

    FIN = "fin"  # it closes the connection
    RST = "rst"  # its process is killed, or it gives up hard
    HALF_CLOSE = "half-close"  # it closes its side only, and still reads
    SILENCE = "silence"  # its host vanishes: no packet is answered any more
    STALL = "stall"  # it stays connected and reads no more


class Company(StrEnum):
    """Who else is there."""

    ALONE = "alone"
    BESIDE = "beside"  # another client's stream goes on
    SLOTS = "slots"  # as many as the engine has slots leave at once
    STORM = "storm"  # several times as many leave at once


@dataclass(frozen=True, slots=True)
class Case:
    moment: Moment
    departure: Departure
    company: Company = Company.ALONE

    @property
    def name(self) -> str:
        end = "" if self.company is Company.ALONE else f"-{self.company.value}"
        return f"{self.moment.value}-{self.departure.value}{end}"

    @property
    def counts(self) -> bool:
        """Whether an engine that goes on is at fault.

        A client that closes its side only may still want the answer, and nothing tells at once that a host has vanished or that
        a reader will not go on: those cases are shown, and do not count.
        """
        return self.departure in (Departure.FIN, Departure.RST)

    @property
    def streams(self) -> bool:
        return self.moment is not Moment.WHOLE

    @property
    def text(self) -> str:
        return f"{_MOMENTS[self.moment]}, {_DEPARTURES[self.departure]}{_COMPANY[self.company]}"


_MOMENTS = {
    Moment.UPLOAD: "in the upload",
    Moment.QUEUE: "in the queue",
    Moment.PREFILL: "before the first token",
    Moment.STREAM: "mid-stream",
    Moment.WHOLE: "non-streaming",
    Moment.KEEP_ALIVE: "mid-stream, second call of a connection",
    Moment.PIPELINED: "mid-stream, with a pipelined request behind",
}
_DEPARTURES = {
    Departure.FIN: "closes",
    Departure.RST: "resets",
    Departure.HALF_CLOSE: "half-closes",
    Departure.SILENCE: "vanishes",
    Departure.STALL: "stops reading",
}
_COMPANY = {
    Company.ALONE: "",
    Company.BESIDE: ", beside another client",
    Company.SLOTS: ", all slots at once",
    Company.STORM: ", in a storm",
}


def _cases() -> list[Case]:
    fin, rst = Departure.FIN, Departure.RST
    alone = [Case(moment, how) for moment in Moment for how in (fin, rst)]
    shown = [
        Case(Moment.STREAM, Departure.HALF_CLOSE),
        Case(Moment.WHOLE, Departure.HALF_CLOSE),
        Case(Moment.STREAM, Departure.STALL),
        Case(Moment.STREAM, Departure.SILENCE),
    ]
    beside = [Case(moment, fin, Company.BESIDE) for moment in (Moment.STREAM, Moment.WHOLE)]
    crowds = [Case(moment, fin, Company.SLOTS) for moment in (Moment.STREAM, Moment.WHOLE)]
    return [*alone, *shown, *beside, *crowds, Case(Moment.STREAM, fin, Company.STORM)]


CASES: dict[str, Case] = {case.name: case for case in _cases()}


def choose(names: str) -> list[Case]:
    """Return the cases with these names or beginnings of names, separated by commas; raise `ValueError` for an unknown one."""
    if not names:
        return list(CASES.values())
    chosen: dict[str, Case] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        found = {key: case for key, case in CASES.items() if key == name} or {
            key: case for key, case in CASES.items() if key.startswith(name)
        }
        if not found:
            raise ValueError(f"there is no case {name!r}; choose from {', '.join(CASES)}")
        chosen |= found
    return list(chosen.values())
