"""Answers of several workers, merged into one."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.gateway.admin.calls import SORTS
from hangup.gateway.workers import admin, merge, metrics

PAGE_A = """\
# HELP hangup_calls_total Calls.
# TYPE hangup_calls_total counter
hangup_calls_total{route="a b"} 2.0
# HELP hangup_backend_up Up.
# TYPE hangup_backend_up gauge
hangup_backend_up{backend="x"} 1.0
# HELP hangup_backend_limit Limit.
# TYPE hangup_backend_limit gauge
hangup_backend_limit{backend="x"} +Inf
# HELP hangup_job_items Items.
# TYPE hangup_job_items gauge
hangup_job_items{state="queued"} 7.0
hangup_job_items{state="running"} 2.0
"""
PAGE_B = PAGE_A.replace("2.0", "3.0").replace("1.0", "0.0") + "# HELP n N.\n# TYPE n gauge\nn 1.0\n"


def test_metrics_add_up_or_are_the_same_for_all() -> None:
    merged = metrics.merge([metrics.parse(PAGE_A), metrics.parse(PAGE_B)])
    text = metrics.render(merged)
    assert 'hangup_calls_total{route="a b"} 5.0\n' in text
    assert 'hangup_backend_up{backend="x"} 0.0\n' in text
    assert 'hangup_backend_limit{backend="x"} +Inf\n' in text
    assert 'hangup_job_items{state="queued"} 7.0\n' in text and 'hangup_job_items{state="running"} 5.0\n' in text
    assert text.endswith("# TYPE n gauge\nn 1.0\n") and metrics.parse(text) == merged
    assert metrics.render(metrics.merge([metrics.parse(PAGE_A)])) == PAGE_A


def test_counters_stay_when_a_worker_has_ended() -> None:
    left = metrics.counters_of(metrics.parse(PAGE_A))
    assert list(left) == ["hangup_calls_total"]
    merged = metrics.merge([left, metrics.parse(PAGE_B)])
    assert merged["hangup_calls_total"].samples == {'hangup_calls_total{route="a b"}': 5.0}
    assert merged["hangup_job_items"].samples['hangup_job_items{state="running"}'] == 3.0


def row(age: float, **fields: Any) -> dict[str, Any]:
    usual = {"idle_s": None, "tokens_out": 0, "tokens_per_s": None, "deadline_left_s": None}
    names = dict.fromkeys(("tenant", "model", "backend", "phase", "client"), "x")
    return {"age_s": age, **usual, **names, **fields}


def page(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"calls": rows, "total": len(rows), "live": len(rows)}


@given(st.lists(st.lists(st.floats(0, 100))), st.integers(0, 5), st.integers(0, 9))
def test_calls_are_sorted_and_paged_over_all_workers(ages: list[list[float]], offset: int, limit: int) -> None:
    merged = merge.calls([page([row(age) for age in part]) for part in ages], "age", offset, limit)
    expected = sorted((age for part in ages for age in part), reverse=True)
    assert [call["age_s"] for call in merged["calls"]] == expected[offset : offset + limit]
    assert merged["total"] == merged["live"] == len(expected)


def test_every_sort_of_a_worker_is_known() -> None:
    for sort in SORTS:
        for sign in ("", "-"):
            rows = [row(1.0, tokens_out=3, idle_s=2.0, tenant="a"), row(2.0, tokens_out=5, deadline_left_s=9.0, tenant="b")]
            assert len(merge.calls([page(rows)], sign + sort, 0, 9)["calls"]) == 2
    assert [call["age_s"] for call in merge.calls([page(rows)], "deadline", 0, 9)["calls"]] == [2.0, 1.0]
    assert [call["age_s"] for call in merge.calls([page(rows)], "-tokens", 0, 9)["calls"]] == [1.0, 2.0]


def backend(**fields: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"name": "x", "quarantined": False, "state": "up", "failures": 0, "limit": 4, "in_flight": 1}
    usual |= {"ladder": "healthy", "ladder_reason": "", "ladder_s": None}
    usual |= {"drained": False, "tokens_computed": None, "busy": 0.5, "busy_s": 1.0, "orphans": 0, "alarm": None, "zombies": []}
    return usual | fields


def test_a_backend_shows_its_worst_state_and_its_whole_load() -> None:
    (merged,) = merge.backends([[backend()], [backend(state="down", zombies=["z"], alarm="exact", tokens_computed=7)]])
    assert (merged["state"], merged["in_flight"], merged["limit"]) == ("down", 2, 8)
    assert (merged["zombies"], merged["alarm"], merged["tokens_computed"]) == (["z"], "exact", 7)
    (merged,) = merge.backends([[backend()], [backend(ladder="degraded", ladder_reason="z still runs")], [backend()]])
    assert (merged["ladder"], merged["ladder_reason"]) == ("degraded", "z still runs"), "one worker judges it for all"
    assert merged["busy_s"] == 3.0, "each worker has its share of the engine's time"
    (merged,) = merge.backends([[backend(limit=0, in_flight=3)], [backend(limit=1)]])
    assert merged["limit"] == 4, "places to be given back are used until their calls end"
    (merged,) = merge.backends([[backend(limit=None)], [backend()]])
    assert merged["limit"] is None
    drained = backend(drained=True, state="drained, up", in_flight=0)
    (merged,) = merge.backends([[drained], [backend(drained=True, state="draining, up")]])
    assert merged["state"] == "draining, up" and merged["drained"]
    assert [row["name"] for row in merge.backends([[backend()], [backend(name="y")]])] == ["x", "y"]


def overview(**fields: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("live", "waiting", "connections", "tokens_streaming"), 1)
    lists: dict[str, Any] = {"backends": [backend()], "alarms": [], "zombies": [], "left": []}
    groups: dict[str, Any] = {name: {"a": 1} for name in ("phases", "outcomes", "refusals", "tokens")}
    groups["refusal_words"] = {"a": "Said."}
    groups["rates"] = {"busy": None, "computed_per_s": None, "received_per_s": 2.0, "uncounted_per_s": 0.5}
    return {"version": "1", "not_ready": None, **counts, **groups, **lists, "jobs": {"total": 0, "rows": []}, **fields}


def test_the_dashboard_shows_the_sum() -> None:
    rates = {"busy": 0.5, "computed_per_s": 9.0, "received_per_s": 4.0, "uncounted_per_s": 1.0}
    first = overview(not_ready="no backend is up", rates=rates, left=[{"ended_s_ago": 3.0}], alarms=[{"backend": "x"}])
    second = overview(outcomes={"a": 2, "b": 3}, left=[{"ended_s_ago": 1.0}], jobs={"total": 2, "rows": [1]})
    merged = merge.overview([first, second])
    assert merged["not_ready"] is None and merged["live"] == 2 and merged["outcomes"] == {"a": 3, "b": 3}
    assert [row["ended_s_ago"] for row in merged["left"]] == [1.0, 3.0] and merged["jobs"]["total"] == 2
    assert merged["rates"] == {"busy": 0.5, "computed_per_s": 9.0, "received_per_s": 6.0, "uncounted_per_s": 1.5}
    assert merged["alarms"] == [{"backend": "x"}] and merged["backends"][0]["in_flight"] == 2
    assert merge.overview([first])["not_ready"] == "no backend is up"
    assert metrics.parse("# HELP n N.\n# TYPE n gauge\nn +Inf\n")["n"].samples == {"n": math.inf}


def interval(end: float, calls: int, **fields: Any) -> dict[str, Any]:
    every = {"calls": calls, "not_served": 1, "first_token": [[3, calls]], "queue": [[0, calls]]}
    usual = {
        "seconds": 5.0,
        "busy": 0.5,
        "computed": 7,
        "received": calls,
        "uncounted": 0,
        "live": 1.0,
        "waiting": 0.0,
        "ends": {"shed": 1},
    }
    return {"end": end, **usual, "every": every, "groups": {"m": every}, **fields}


def past(length: int, rows: list[dict[str, Any]], *events: float) -> dict[str, Any]:
    return {"length_s": length, "since": rows[0]["end"], "bounds": [1], "rows": rows, "events": [{"at": at} for at in events]}


def test_histories_add_up_by_time_and_single_polls_by_their_order() -> None:
    minutes = merge.history([past(60, [interval(60.1, 1), interval(121.0, 2)], 5.0), past(60, [interval(125.0, 3)], 1.0)])
    assert [(row["end"], row["received"], row["live"], row["computed"]) for row in minutes["rows"]] == [
        (60.1, 1, 1.0, 7),
        (125.0, 5, 2.0, 7),
    ]
    both = {"calls": 5, "not_served": 2, "first_token": [[3, 5]], "queue": [[0, 5]]}
    assert minutes["rows"][1]["every"] == both == minutes["rows"][1]["groups"]["m"]
    assert minutes["rows"][1]["ends"] == {"shed": 2} and minutes["since"] == 60.1
    assert [event["at"] for event in minutes["events"]] == [1.0, 5.0]
    polls = merge.history([past(0, [interval(1.0, 1), interval(6.0, 2)]), past(0, [interval(7.0, 4, groups={})])])
    assert [row["received"] for row in polls["rows"]] == [1, 6] and polls["rows"][1]["groups"]["m"]["calls"] == 2
    # A worker that has just started knows all of a day in single polls, the other one only in minutes.
    assert merge.history([past(60, [interval(60.0, 1)]), past(0, [interval(61.0, 1)])])["length_s"] == 60


def test_figures_of_processes_add_up_or_are_those_of_the_first() -> None:
    def page(*values: float) -> str:
        kinds = {"process_cpu_seconds_total": "counter", "process_start_time_seconds": "gauge", "process_open_fds": "gauge"}
        figures = zip(kinds.items(), values, strict=True)
        return "".join(f"# HELP {name} X.\n# TYPE {name} {kind}\n{name} {value}\n" for (name, kind), value in figures)

    merged = metrics.merge([metrics.parse(page(2.0, 100.0, 5.0)), metrics.parse(page(3.0, 50.0, 6.0))])
    shown = {name: value for family in merged.values() for name, value in family.samples.items()}
    assert shown == {"process_cpu_seconds_total": 5.0, "process_start_time_seconds": 50.0, "process_open_fds": 11.0}


def test_many_dashboards_ask_the_workers_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "PERIOD_S", 3600.0)

    class Worker:
        asked = 0

        async def ask(self, method: str, target: str, within_s: float) -> tuple[int, bytes]:
            self.asked += 1
            await asyncio.sleep(0)
            return 200, orjson.dumps(overview())

    async def run() -> None:
        worker = Worker()
        whole: Any = SimpleNamespace(answering_workers=lambda: [worker])
        whole_admin = admin.WholeAdmin(whole)
        first, *others = await asyncio.gather(*(whole_admin._overview() for _ in range(20)))
        assert worker.asked == 1 and first is not None and all(other == first for other in others)
        whole_admin._made_at -= 1800
        await whole_admin._overview()
        assert worker.asked == 2

    asyncio.run(run())


def test_a_label_may_hold_any_character_but_a_line_feed() -> None:
    """A client chooses the model's name; splitlines() would break such a line in two, and the page with it."""
    line = 'hangup_calls_total{model="a\r\x0b\x1c\x85\u2028b"}'
    page = f"# HELP hangup_calls_total Calls.\n# TYPE hangup_calls_total counter\n{line} 2.0\n"
    families = metrics.merge([metrics.parse(page), metrics.parse(page)])
    assert families["hangup_calls_total"].samples == {line: 4.0}
    assert metrics.parse(metrics.render(families))["hangup_calls_total"].samples == {line: 4.0}
