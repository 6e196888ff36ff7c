"""The page docs/scoreboard.md: written from reports, and read again, so that a run of some keeps the results of all others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hangup.probe import CASES, ProbeReport
from hangup.probe.render.markdown import brief

HEAD = """\
# Scoreboard: who stops when clients hang up?

Made by `make scoreboard` with [`hangup probe`](probe.md): the same cases for all, ours among them. A
tick has the time within which the engine was idle after the departure. A cross has the tokens that
were computed for one client that had left, or how many of several departures did not stop the engine.
A question mark means that it cannot be told. A tick in brackets: it stopped, but the engine may be
asked only so rarely that nobody can say whether within 1 s. A tick with more than 1 s and no
brackets: nothing was computed in that time, because the call still waited for a slot. What is
*shown only* is no fault: see [probe.md](probe.md#cases).

The machine is a small shared one, with other load: times are upper bounds.
"""
GATEWAYS = """\
All gateways stand in front of the same stand-in engine (4 slots, 50 tokens a second), which stops as
soon as its own connection closes. So what goes on behind a gateway is the gateway's doing.
"""
TITLES = {"engines": "## Engines, probed directly\n", "gateways": f"## Gateways\n\n{GATEWAYS}"}
_COST = "**tokens per departure**"
_COLUMNS = "| name | version | started by | evidence | probed |"


@dataclass(slots=True)
class Standing:
    """What the page says of one engine or gateway."""

    cells: dict[str, str] = field(default_factory=dict)  # by the text of the case
    facts: str = ""  # its line in the table of versions
    notes: list[str] = field(default_factory=list)


def standing_of(name: str, result: ProbeReport | str) -> Standing:
    """Return what a report, or the reason why there is none, says."""
    if isinstance(result, str):
        return Standing(notes=[result])
    cells = {case_text(one.case.name): brief(one.judgement) for one in result.results}
    burnt = result.burnt_per_departure
    cells[_COST] = "–" if burnt is None else f"**{burnt:.0f}**"
    evidence = "figures" if "figures" in result.evidence else result.evidence
    facts = f"| {name} | {result.version} | `{result.command}` | {evidence} | {result.date} |"
    failed = Counter(note for one in result.results for note in one.judgement.notes if "new calls failed" in note)
    cases = (f"after {count} of {len(result.results)} cases {note}" for note, count in failed.items())
    return Standing(cells, facts, [*result.notes, *cases])


def case_text(name: str) -> str:
    case = CASES[name]
    return case.text + ("" if case.counts else " (shown only)")


def write(lineup: Mapping[str, Iterable[str]], standings: Mapping[str, Standing]) -> str:
    """Return the page; `lineup` has the names of each part, in their order."""
    parts = [HEAD]
    for part, names in lineup.items():
        known = [(name, standings[name]) for name in names if name in standings]
        shown = [(name, standing) for name, standing in known if standing.cells]
        rows = [*map(case_text, CASES), _COST]
        lines = ["| the client leaves | " + " | ".join(name for name, _ in shown) + " |", "| -- |" + " -- |" * len(shown)]
        lines += [f"| {row} | " + " | ".join(standing.cells.get(row, "–") for _, standing in shown) + " |" for row in rows]
        lines += ["", _COLUMNS, "| -- | -- | -- | -- | -- |", *(standing.facts for _, standing in shown), ""]
        parts += [TITLES[part], *lines, *(f"- {name}: {note}" for name, standing in known for note in standing.notes), ""]
    return "\n".join(parts)


def read(page: str) -> dict[str, Standing]:
    """Return what a page says of each."""
    found: dict[str, Standing] = {}
    for part in page.split("\n## ")[1:]:
        names: list[str] = []
        for line in part.splitlines():
            if line.startswith("| the client leaves |"):
                names = _cells(line)[1:]
                found |= {name: Standing() for name in names}
            elif line.startswith("| ") and not line.startswith(("| --", _COLUMNS)):
                first, *cells = _cells(line)
                if first in found:
                    found[first].facts = line
                else:
                    for name, cell in zip(names, cells, strict=True):
                        found[name].cells[first] = cell
        for note in re.findall(r"^- (.*(?:\n  .*)*)", part, re.M):
            name, _, text = " ".join(note.split()).partition(": ")
            found.setdefault(name, Standing()).notes.append(text)
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
