"""`hangup demo` in a few seconds: its figures add up, it shows them at a terminal of any width, and no process is left."""

from __future__ import annotations

import asyncio
import re
import signal
import urllib.request
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.cli.demo_parts.crowd import HABITS, WHAT_THEY_DO, CrowdTally, DemoCrowd
from hangup.cli.demo_parts.picture import PhaseResult, Stuck, table, verdict
from hangup.cli.demo_parts.wedge import wedged
from hangup.terminal import cells
from support.linux import proc
from support.processes import Process
from support.terminal import Terminal
from support.waiting import wait_until


def children(pid: int) -> list[int]:
    return [int(child) for child in proc(pid, f"task/{pid}/children").read_text().split()]


def columns(text: str, label: str) -> list[int]:
    """Return the first number of each side in a row of the table."""
    found = re.search(rf"^ +{label} +(.*)$", text, re.M)
    assert found is not None, text
    return [int(part.replace(",", "")) for part in re.findall(r"(?<![\d.(])[\d,]+(?![\d.]|%)", found[1])][:2]


@pytest.mark.alone
def test_the_crowd_costs_less_behind_hangup() -> None:
    with Process("demo", "--seconds", "4", "--slots", "2", "--admin-port", "0") as process:
        assert process.wait(300) == 0
    text = "\n".join(process.stdout_lines)
    wasted = [int(share) for share in re.search(r"for nobody .*?\((\d+)%\).*?\((\d+)%\)", text).groups()]  # type: ignore[union-attr]
    assert wasted[0] > 10 and wasted[1] < wasted[0] / 2, text
    parts = [columns(text, label) for label in ("completed", "the client gave up", "refused", "unfinished")]
    assert [sum(side) for side in zip(*parts, strict=True)] == columns(text, "requests"), "the rows add up"
    assert text.splitlines()[-1].startswith(("With hangup,", "This run shows no gain", "The machine was slower"))


def test_a_stuck_engine_is_restarted_behind_hangup() -> None:
    """The second side of `--wedge`, for as long as it takes: the engine gets stuck, is restarted, and answers again."""

    async def until_restarted() -> tuple[int, int]:
        (_, (name, open_side)) = wedged(2, 0).sides
        assert name == "with hangup"
        async with asyncio.timeout(120), open_side() as side:
            assert side.start is not None
            crowd = DemoCrowd(side.port, 3.0, 50, 1)
            arrivals = asyncio.ensure_future(crowd.run(120))
            try:
                await side.start(0.0)
                stuck = Stuck()
                while not stuck.restarts:
                    await asyncio.sleep(0.2)
                    stuck = (await side.sample()).stuck or stuck
                assert stuck.seconds >= 1 and stuck.drafted > 100 and stuck.cancels > 0, "it drafted on, and read no cancel"
                before = crowd.tally.completed
                while crowd.tally.completed < before + 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            finally:
                arrivals.cancel()
                await asyncio.gather(arrivals, return_exceptions=True)
            return before, crowd.tally.completed

    before, after = asyncio.run(until_restarted())
    assert after > before


def test_it_takes_its_processes_along() -> None:
    with Process("demo", "--admin-port", "0") as process:
        wait_until(lambda: children(process.popen.pid), what="the demo's engine")
        started = children(process.popen.pid)
        process.signal(signal.SIGTERM)
        assert process.wait() == 143
        wait_until(lambda: not [pid for pid in started if proc(pid).exists()], what="its processes to end")


def test_at_a_terminal_the_dashboard_stays_until_one_leaves() -> None:
    with Terminal("demo", "--wedge", "--seconds", "2", "--slots", "2", "--admin-port", "0") as terminal:
        terminal.wait_for("clients there now")
        assert "Of the clients, 45% stay" in terminal.text
        url = terminal.wait_for(r"The dashboard stays at (http://\S+)")[1]
        assert urllib.request.urlopen(f"{url}healthz", timeout=60).status == 200
        started = children(terminal.popen.pid)
        terminal.popen.send_signal(signal.SIGINT)
        assert terminal.wait() == 130
        wait_until(lambda: not [pid for pid in started if proc(pid).exists()], what="its processes to end")
    assert all(cells(line) <= 80 for line in terminal.screen if line.startswith("  "))


def test_stopped_early_it_says_so() -> None:
    with Terminal("demo", "--wedge", "--seconds", "60", "--admin-port", "0", width=50) as terminal:
        terminal.wait_for("clients there now")
        terminal.popen.send_signal(signal.SIGINT)
        assert terminal.wait() == 130
        terminal.wait_for("stopped before the end")


def test_a_client_that_gave_up_did_not_get_its_first_token_then() -> None:
    tally = CrowdTally(first_token_s=[0.1, 0.2, 3.0], gave_up_s=[8.0])
    assert (tally.first_token_words(0.5), tally.first_token_words(0.99)) == ("0.20 s", "> 8.00 s")
    tally = CrowdTally(first_token_s=[0.2] * 4 + [1.9], gave_up_s=[1.0] * 8)
    assert tally.first_token_words(0.5) == tally.first_token_words(0.99) == "1.90 s", "not '> 1.00 s' beside an exact p99"
    assert CrowdTally().first_token_words(0.5) == "-"


def result(requests: int, completed: int = 0, tokens: int = 0) -> PhaseResult:
    tally = CrowdTally(requests=requests, completed=completed, tokens=tokens)
    return PhaseResult("with hangup", 5.0, 24.0, tally, 1000.0, 4.0)


@given(st.integers(20, 200), st.booleans(), st.integers(0, 10**7))
def test_the_table_fits_any_width(width: int, live: bool, number: int) -> None:
    sides = [result(requests=number, completed=number // 3, tokens=500), result(requests=1)]
    assert all(cells(line) <= width for line in table(sides, width, live=live))


def test_the_verdict_claims_no_more_than_the_figures() -> None:
    few, many = result(requests=50, completed=10, tokens=300), result(requests=50, completed=30, tokens=950)
    said = "With hangup, the same engine completed 30 answers instead of 10 (3.0 ×): it computed 5% of its tokens for nobody"
    assert verdict(few, many).startswith(said)
    assert verdict(many, few).startswith("This run shows no gain in answers (10 instead of 30)")
    assert "cannot be compared; the engine computed 5%" in verdict(replace(few, computed=400.0), many), "on a busy machine"
    stuck = replace(few, stuck=Stuck(20.0)), replace(many, stuck=Stuck(4.0, restarts=1))
    assert "hangup restarted it after 4 s" in verdict(*stuck)
    assert "too short for a verdict" in verdict(*reversed(stuck))
    assert "×" not in verdict(result(requests=5), few), "nothing is infinitely better"
    assert sum(habit.share for habit in HABITS) == pytest.approx(1) and "time out after 1 s" in WHAT_THEY_DO
