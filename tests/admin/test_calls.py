"""The list of live calls: filters, order and pages; and many calls cost little."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core import reasons
from hangup.core.call import Call, CallTimeLimits
from hangup.core.reaper import PendingStop, StopState
from hangup.gateway.admin.calls import SORTS, BadQuery, Filter, listing, timeline


def make(id: str, started_at: float = 0.0, tenant: str = "a", tokens: int = 0) -> Call:
    call = Call(id, started_at, "10.0.0.1")
    call.tenant, call.model, call.clock = tenant, "m", CallTimeLimits(total_s=600)
    call.received(started_at)
    call.sent("b1", started_at)
    call.answered(started_at + 0.1)
    if tokens:
        call.progressed(tokens, started_at + 0.2)
    return call


def ids(calls: list[Call], **query: str) -> list[str]:
    return [row["id"] for row in listing(calls, lambda call: "", query, 100.0)["calls"]]


def test_filters_and_sorts() -> None:
    calls = [make("x", 10, "a", 5), make("y", 20, "b", 9), make("z", 5, "a", 7)]
    assert ids(calls) == ["z", "x", "y"]
    assert ids(calls, sort="-age") == ["y", "x", "z"]
    assert ids(calls, sort="tokens") == ["y", "z", "x"]
    assert ids(calls, tenant="a") == ["z", "x"]
    assert ids(calls, older_than_s="85") == ["z", "x"]
    assert ids(calls, tenant="nobody") == []
    assert ids(calls, id="x,y,unknown") == ["x", "y"]
    assert ids(calls, limit="1", offset="1") == ["x"]


@pytest.mark.parametrize(
    "query", [{"sort": "price"}, {"older_than_s": "-1"}, {"limit": "x"}, {"phase": "dead"}, {"offset": "nan"}]
)
def test_nonsense_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(BadQuery):
        listing([], lambda call: "", query, 0.0)


def test_an_empty_filter_is_false_so_that_a_kill_by_it_can_be_refused() -> None:
    assert not Filter.read({"sort": "age"})
    assert Filter.read({"older_than_s": "1"})


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=80, unique_by=lambda row: row[0]),
    st.sampled_from(sorted(SORTS)),
    st.booleans(),
)
def test_pages_put_together_are_the_whole_list(rows: list[tuple[int, int]], sort: str, turned: bool) -> None:
    """No call appears twice or is missing at a page's end, however the client found the page."""
    calls = [make(f"c{at}", float(at), f"t{tokens % 3}", tokens) for at, tokens in rows]
    query = {"sort": f"-{sort}" if turned else sort}
    whole = ids(calls, limit="1000", **query)
    pages = [ids(calls, limit="3", offset=str(at), **query) for at in range(0, len(calls) + 3, 3)]
    assert [id for page in pages for id in page] == whole
    assert sorted(whole) == sorted(call.id for call in calls)


def test_a_timeline_tells_of_the_end_and_of_what_is_known_of_the_engine() -> None:
    call = make("x", 10.0, tokens=3)
    call.client_answer_began(200)
    call.end(reasons.KILLED, 12.0)
    stop = PendingStop("x", 12.0, slot=3, tokens=3)
    call.pending_stops = (stop,)
    assert [step["what"] for step in timeline(call)][-2:] == [
        "ended: killed, status 200",
        "stop requested from the engine",
    ]
    assert (call.stop_state, call.engine_stopped) == (StopState.PENDING, None)
    stop.zombie_since, stop.aborts, stop.tokens_now = 14.0, 2, 40
    story = "zombie: the engine still computes it in slot 3 after 2 repeated aborts, 37 tokens computed since"
    assert timeline(call)[-1] == {"at_s": 4.0, "what": story} and call.engine_stopped is False
    stop.release(StopState.VERIFIED, 15.5)
    steps = timeline(call)
    assert steps[-1] == {"at_s": 5.5, "what": "verified: the engine stopped the work"} and call.engine_stopped
    assert [step["at_s"] for step in steps] == sorted(step["at_s"] for step in steps)


@pytest.mark.parametrize(
    ("fates", "worst", "let_go"),
    [
        ([], None, True),
        ([StopState.VERIFIED, StopState.RESTARTED], StopState.RESTARTED, True),
        ([StopState.UNVERIFIED, StopState.VERIFIED], StopState.UNVERIFIED, None),
    ],
)
def test_the_worst_of_its_attempts_is_what_is_known_of_a_call(
    fates: list[StopState], worst: StopState | None, let_go: bool | None
) -> None:
    call = make("x")
    call.end(reasons.KILLED, 2.0)
    call.pending_stops = tuple(PendingStop("x", 1.0) for _ in fates)
    for stop, fate in zip(call.pending_stops, fates, strict=True):
        stop.release(fate, 3.0)
    assert (call.stop_state, call.engine_stopped) == (worst, let_go)


@pytest.mark.alone
def test_the_first_page_of_ten_thousand() -> None:
    """The benchmark measures the time over sockets; this test fails only if the cost is of another order of magnitude."""
    calls = [make(f"c{at}", float(-at), f"t{at % 7}", at % 100) for at in range(10_000)]
    best = min(_seconds(calls) for _ in range(5))
    assert best < 0.5


def _seconds(calls: list[Call]) -> float:
    start = time.perf_counter()
    assert len(ids(calls, sort="tokens", tenant="t3")) == 100
    return time.perf_counter() - start
