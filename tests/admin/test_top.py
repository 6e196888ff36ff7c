"""`hangup top`: its keys, what it draws, and whole sessions in a terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.test_api import live, streaming
from admin.test_commands import as_json, hangup
from hangup.cli.table import fitted
from hangup.cli.top_parts.screen import draw, matching
from hangup.cli.top_parts.state import TopState, click, press, read_keys
from hangup.cli.top_parts.views import VIEWS, TopRow
from hangup.terminal import cells
from support.processes import Gateway, StandIn
from support.terminal import Terminal

IDS = ["a", "b", "c"]
OVERVIEW: dict[str, Any] = {
    "not_ready": None,
    "live": 100,
    "waiting": 3,
    "tokens": {"delivered": 900, "wasted": 100},
    "rates": {"busy": 0.5, "computed_per_s": 90.0, "received_per_s": 83.4},
    "backends": [{"zombies": ["z"]}],
    "jobs": {"total": 0},
    "alarms": [{"backend": "b", "signal": "exact"}],
}


def after(keys: str, state: TopState | None = None) -> TopState:
    state = state or TopState()
    for key in read_keys(keys.encode()):
        state = press(state, key, IDS)
    return state


def test_keys() -> None:
    assert after("jjjj").selected == "c" and after("jk").selected == "a" and after("G").selected == "c"
    assert after("\x1b[B\x1b[B\x1b[A").selected == "b" and after("G\x1b[5~").selected == "a"
    assert after("r").sort == "-age" and after("rr").sort == "age" and after("s").sort == "idle" and after("sS").sort == "age"
    assert after("jx").confirming == ("kill", "b") and after("jxy").action == ("kill", "b")
    assert after("jxn").action == ("", "") and after("jxn").confirming == ("", "")
    assert after("/ops\r").filter == "ops" and after("/ops\r").typing is False and after("/ops\x1b").filter == ""
    assert after("/q").quit is False and after("/opx\x7f").filter == "op"
    assert (
        [after(key).view for key in "123456"] == list(VIEWS)
        and after("\t").view == "backends"
        and after("\x1b[D").view == "tenants"
    )
    assert after("j\r").action == ("trace", "b") and after("5\r").action == ("job", "a") and after("6\r").action == ("", "")
    assert after("?").page == "help" and after("?q").page == "" and not after("?q").quit and after("q").quit


def test_a_click_goes_where_it_points() -> None:
    rows, tabs = [(4, "a"), (5, "b")], [(0, 10, "calls"), (10, 22, "backends")]
    assert click(TopState(), "\x1b[<0;3;6M", rows, tabs, 1).selected == "b"
    assert click(TopState(selected="b"), "\x1b[<0;3;6M", rows, tabs, 1).action == ("trace", "b")
    assert click(TopState(), "\x1b[<0;15;2M", rows, tabs, 1).view == "backends"
    assert click(TopState(), "\x1b[<65;1;1M", rows, tabs, 1).selected == "b"
    assert click(TopState(confirming=("kill", "a")), "\x1b[<0;3;6M", rows, tabs, 1).action == ("", ""), "no kill by a click"


def test_80_columns_show_what_matters_of_zombies_and_backends() -> None:
    zombie = {
        "id": "hu-407e05a781cf916c5c9698c6", "backend": "vllm-deaf", "slot": None, "tenant": "default", "cause": "fin",
        "aborts": 3, "ended_s_ago": 1362.0, "tokens_since": 37712, "tokens_exact": False, "release": "verified", "lived_s": 3.0,
    }  # fmt: skip
    (row,) = VIEWS["zombies"].read(lambda *_, **__: {"zombies": [zombie]}, "ended")
    _, line = fitted(VIEWS["zombies"].columns, [row.cells], 80)
    assert line.startswith("hu-407e05a7  vllm-deaf") and " verified" in line and "closed" in row.cells
    backend = [
        "vllm-deaf",
        "vllm",
        "quarantined",
        "7",
        "0 (calls wait in the engine)",
        "quarantined",
        "7",
        "hu-1 still runs",
        "m",
    ]
    _, line = fitted(VIEWS["backends"].columns, [backend], 80)
    assert " quarantined " in line and "quara…" not in line, "the state is whole where the ladder's step does not fit beside it"


def test_the_summary_has_what_fits() -> None:
    def summary(width: int, **changes: Any) -> str:
        return draw({**OVERVIEW, **changes}, [], TopState(), "", [], (width, 10), coloured=False).lines[0]

    now = "hangup  ready, 100 live, 3 waiting, 83 tok/s"
    assert summary(150) == f"{now}, engines 50% busy, since the start 900 tokens delivered, 100 wasted (10%)"
    assert summary(80) == f"{now}, in all 900 tok, 100 wasted"
    assert summary(len(now)).startswith(now[:-1]), "the rate is cut last"
    assert "busy" not in summary(150, rates={"busy": None, "computed_per_s": None, "received_per_s": 0.0})


@given(
    st.sampled_from(list(VIEWS)),
    st.integers(20, 200),
    st.integers(6, 60),
    st.integers(0, 99),
    st.sampled_from(["", "help", "trace"]),
    st.text(max_size=10),
)
def test_the_screen_keeps_to_its_size_and_shows_the_chosen_row(
    view: str, width: int, height: int, chosen: int, page: str, text: str
) -> None:
    columns = VIEWS[view].columns
    rows = [TopRow(f"key-{at:03d}", [f"key-{at:03d}", *["x" * 30] * (len(columns) - 1)], ()) for at in range(100)]
    state = TopState(view=view, selected=f"key-{chosen:03d}", page=page, scroll=chosen)
    drawing = draw(OVERVIEW, rows, state, text, ["a line " * 40] * 200, (width, height))
    plain = [re.sub(r"\x1b\[\d*m", "", line) for line in drawing.lines]
    assert len(plain) <= height and all(cells(line) <= width for line in plain)
    if not page and height > 8:
        (line,) = [drawing.lines[at] for at, key in drawing.rows if key == f"key-{chosen:03d}"]
        assert line.startswith("\x1b[7mkey-"), "the selected row is visible and marked"


def test_the_filter_looks_at_everything() -> None:
    rows = [TopRow("hu-long-id-1", ["hu-long", "search", "answering"], ()), TopRow("hu-2", ["hu-2", "batch", "waiting"], ())]
    assert [row.key for row in matching(rows, "SEARCH")] == ["hu-long-id-1"]
    assert matching(rows, "id-1") == rows[:1] and matching(rows, "wait") == rows[1:] and matching(rows, "") == rows
    lines = draw(OVERVIEW, [], replace(TopState(), filter="x"), "", [], (80, 24)).lines
    assert "no row contains the filter" in lines[4]


def test_in_a_terminal(gateway: Gateway, engine: StandIn) -> None:
    """A session as an operator has it: look at a call, look for it, kill it; the terminal is restored at the end."""
    with (
        streaming(gateway, "doomed-by-top"),
        Terminal("top", "--every", "0.2s", "--admin", gateway.admin_url) as terminal,
    ):
        terminal.wait_for("doomed-by-t", on_screen=True)
        terminal.type("\r")
        terminal.wait_for("first token", on_screen=True)
        terminal.type("q/nothing-has-this")
        terminal.wait_for("no row contains the filter", on_screen=True)
        terminal.type("\x1b")
        terminal.wait_for("doomed-by-t", on_screen=True)
        terminal.type("2")
        terminal.wait_for("standin +up", on_screen=True)
        terminal.type("\x1b[<0;3;2M")  # a click on "calls"
        terminal.wait_for("doomed-by-t", on_screen=True)
        terminal.resize(60, 20)
        terminal.wait_for(r"\A[^\n]{1,60}\n[^\n]{1,60}\n", on_screen=True)
        terminal.type("x")
        terminal.wait_for(r"kill doomed-by-top\? y to confirm", on_screen=True)
        terminal.type("y")
        terminal.wait_for("killed doomed-by-top: connection cut", on_screen=True)
        terminal.wait_for("no live calls", on_screen=True)
        terminal.type("q")
        assert terminal.wait() == 0
        assert terminal.output.rstrip().endswith(b"\x1b[?1006l\x1b[?1000l\x1b[?1049l\x1b[?25h")
    engine.wait_idle()
    assert live(gateway) == []


@pytest.mark.parametrize("view", list(VIEWS))
def test_each_view_of_a_real_gateway_fits_80_columns(gateway: Gateway, view: str) -> None:
    with (
        streaming(gateway, f"hu-for-the-view-{view}"),
        Terminal("top", view, "--every", "0.2s", "--admin", gateway.admin_url) as terminal,
    ):
        terminal.wait_for("sorted by", on_screen=True)
        assert all(cells(line) <= 80 for line in terminal.screen)
        terminal.type("q")
        assert terminal.wait() == 0


def test_a_gateway_that_is_gone_is_told(engine: StandIn) -> None:
    with Gateway(engine.url) as gateway, Terminal("top", "--every", "0.2s", "--admin", gateway.admin_url) as terminal:
        terminal.wait_for("no live calls", on_screen=True)
        gateway.close()
        terminal.wait_for("cannot reach the gateway", on_screen=True)
        terminal.type("q")
        assert terminal.wait() == 0


def test_without_a_terminal(gateway: Gateway) -> None:
    assert "top needs a terminal" in hangup(gateway, "top").stderr
    assert set(as_json(gateway, "top")) >= {"calls", "backends", "live"}
