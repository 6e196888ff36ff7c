"""The scoreboard's page can be read again: a run of some engines keeps the results of all others."""

from __future__ import annotations

from pathlib import Path

from bench.scoreboard import page
from bench.scoreboard.lineup import GATEWAYS, OWN_ENGINE, REAL_ENGINES
from tools.markdown import formatted

from probe.test_reports import NEVER, STOPPED, report

PAGE = Path(__file__).parent.parent / "docs" / "scoreboard.md"
ORDER = {"engines": [OWN_ENGINE, *REAL_ENGINES], "gateways": list(GATEWAYS)}


def test_the_page_survives_being_read_and_written() -> None:
    text = PAGE.read_text()
    assert formatted(page.write(ORDER, page.read(text))) == text


def test_a_run_of_some_keeps_the_others() -> None:
    before = page.read(PAGE.read_text())
    fresh = report(STOPPED, NEVER, version="nginx 9", notes=("a note that is so long that it is wrapped " * 4,))
    some = {"nginx": page.standing_of("nginx", fresh), "HAProxy": page.standing_of("HAProxy", "left out: no haproxy")}
    after = page.read(formatted(page.write(ORDER, before | some)))
    assert after["nginx"].cells["in the upload, resets"] == "✗ 200 tokens" and "nginx 9" in after["nginx"].facts
    assert after["nginx"].notes == [" ".join(fresh.notes[0].split())]
    assert not after["HAProxy"].cells and after["HAProxy"].notes == ["left out: no haproxy"]
    others = [name for name in before if name not in some]
    assert len(others) > 10 and {name: after[name] for name in others} == {name: before[name] for name in others}
