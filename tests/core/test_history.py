"""What the dashboard's graphs are made of: rings of intervals that add up."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from core.test_accounts import ended
from hangup.core import reasons
from hangup.core.history import History, HistoryLimits, HistorySample
from hangup.core.ledger import OTHER, Ledger


def look(at: float, **fields: float | None) -> HistorySample:
    """Return a poll at this second, of a gateway that began at noon of some day."""
    values = {"busy": 0.5, "computed": int(at * 10), "received": int(at * 8), "live": 4, "waiting": 1} | fields
    return HistorySample(43_200.0 + at, 1_000.0 + at, **values)  # type: ignore[arg-type]


def one_call(ledger: Ledger, model: str = "m", *, shed: bool = False) -> None:
    call = ended(reasons.QUEUE_FULL if shed else reasons.COMPLETED, tokens=not shed)
    call.model = model
    ledger.record(call)


def test_an_interval_has_what_happened_since_the_last_poll() -> None:
    history, ledger = History(HistoryLimits()), Ledger()
    one_call(ledger)  # before the first poll: nobody knows when
    history.note(look(0), ledger.series.values())
    assert history.latest() is None
    one_call(ledger)
    one_call(ledger, shed=True)
    history.note(look(5, uncounted=5), ledger.series.values())
    latest = history.latest()
    assert latest is not None
    row = latest.as_json("model")
    both = {"calls": 2, "not_served": 1, "first_token": [[12, 1]], "queue": [[10, 2]]}
    assert row == {
        "end": 43_205.0,
        "seconds": 5.0,
        "busy": 0.5,
        "computed": 50,
        "received": 40,
        "uncounted": 5,
        "live": 4,
        "waiting": 1,
        "ends": {"completed": 1, "shed": 1},
        "every": both,
        "groups": {"m": both},
    }
    assert latest.as_json("tenant")["groups"] == {"ann": row["every"]}


def test_what_the_engine_does_not_say_is_unknown() -> None:
    history = History(HistoryLimits())
    for at, computed in enumerate([100, 50, None, 60, 70]):  # it restarted, then it was gone
        history.note(look(at, computed=computed, busy=None), ())
    _, intervals = history.within(10, 43_204.0)
    assert [interval.as_json("model")["computed"] for interval in intervals] == [None, None, None, 10]
    assert {interval.as_json("model")["busy"] for interval in intervals} == {None}


def test_rings_forget_the_oldest() -> None:
    """history_looks_max, history_minutes_max and history_quarters_max: the finest ring that reaches back is shown."""
    history = History(HistoryLimits(looks_max=12, minutes_max=20, quarters_max=3))
    for at in range(0, 7200, 10):
        history.note(look(at), ())
    now = 43_200.0 + 7190
    for seconds, length, most in ((100, 0, 12), (600, 60, 11), (1500, 900, 3), (90_000, 900, 3)):
        found, intervals = history.within(seconds, now)
        assert found == length and 0 < len(intervals) <= most
        assert all(later.end > earlier.end for earlier, later in pairwise(intervals))
    assert history.reaches_back_to == 43_200.0 + 7200 - 3 * 900 - 10


def test_names_beyond_the_bound_are_added_up() -> None:
    """history_groups_max"""
    history, ledger = History(HistoryLimits(groups_max=2)), Ledger()
    history.note(look(0), ())
    for name in "abcd":
        one_call(ledger, name)
    history.note(look(5), ledger.series.values())
    latest = history.latest()
    assert latest is not None
    groups = latest.as_json("model")["groups"]
    assert {name: group["calls"] for name, group in groups.items()} == {"a": 1, "b": 1, OTHER: 2}


@given(st.lists(st.tuples(st.floats(0.1, 400), st.integers(0, 3), st.booleans()), min_size=2, max_size=60))
def test_every_ring_tells_the_same_story(polls: list[tuple[float, int, bool]]) -> None:
    history, ledger, at = History(HistoryLimits(looks_max=1000, minutes_max=1000, quarters_max=1000)), Ledger(), 0.0
    calls = 0
    history.note(look(0), ())
    for after, count, shed in polls:
        at += after
        for _ in range(count):
            one_call(ledger, shed=shed)
        calls += count
        history.note(look(at), ledger.series.values())
    sums = [
        (sum(row.every.calls for row in ring), sum(row.computed for row in ring), round(sum(row.seconds for row in ring), 3))
        for _, ring in history._rings
    ]
    assert sums == [(calls, int(at * 10), round(at, 3))] * 3
