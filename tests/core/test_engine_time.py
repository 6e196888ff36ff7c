"""The engine's busy time is divided among its calls without a remainder."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hangup.core import reasons
from hangup.core.account import Account, Price, entry
from hangup.core.call import Call
from hangup.core.engine_time import EngineTime


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=60))
def test_the_shares_of_all_calls_are_the_time_the_engine_was_busy(events: list[tuple[float, bool]]) -> None:
    time, now, used, busy = EngineTime(), 0.0, 0.0, 0.0
    marks: list[float] = []
    for wait, begins in events:
        busy += wait if marks else 0.0
        now += wait
        if begins:
            marks.append(time.enter(now))
        elif marks:
            used += time.leave(marks.pop(0), now)
    busy += 1.0 if marks else 0.0
    used += sum(time.leave(mark, now + 1.0) for mark in marks)
    assert math.isclose(used, busy, abs_tol=1e-6) and math.isclose(time.busy_s, busy, abs_tol=1e-6)
    assert math.isclose(time.used_s, used, abs_tol=1e-6), "as in the ledger"


def test_calls_of_other_processes_use_the_engines_time_as_well() -> None:
    time = EngineTime()
    time.note_others(3, 0.0)
    mark = time.enter(0.0)
    time.note_others(1, 4.0)
    assert time.leave(mark, 6.0) == 4.0 / 4 + 2.0 / 2
    assert time.busy_s == 6.0, "the time with calls of this process"
    assert time.used_s == 2.0, "its share of that time: the shares of all processes add up"


def booked(call: Call, engine_s: float, predicted_tokens: float, price: Price) -> Account:
    account = Account()
    account.add_call(call, engine_s, predicted_tokens, price)
    return account


def call(reason: reasons.Reason, tokens: int, *, stream: bool) -> Call:
    done = Call("x", 0.0)
    done.tenant, done.model, done.stream = "alice", "m", stream
    done.received(0.0)
    done.sent("b", 0.0)
    done.answered(1.0)
    done.progressed(tokens, 1.0)
    done.end(reason, 2.0)
    return done


def test_what_a_call_cost_and_what_came_of_it() -> None:
    price = Price(per_hour=3.6, per_million_tokens=10)
    left = booked(call(reasons.CLIENT_FIN, 40, stream=False), 2.0, 100.0, price)
    assert (left.calls, left.tokens_delivered, left.tokens_wasted, left.tokens_saved) == (1, 0, 40, 60)
    assert math.isclose(left.money, 0.002 + 0.0004) and left.money_wasted == left.money
    assert math.isclose(left.money_saved, left.money / 40 * 60)
    streamed = booked(call(reasons.CLIENT_FIN, 40, stream=True), 2.0, 30.0, price)
    assert (streamed.tokens_delivered, streamed.tokens_wasted, streamed.tokens_saved, streamed.money_wasted) == (40, 0, 0, 0)


def test_what_is_booked_apart_from_a_calls_end_is_the_same() -> None:
    price, ended = Price(per_hour=3.6, per_million_tokens=10), call(reasons.CLIENT_FIN, 40, stream=False)
    ended.tenant, ended.model, ended.backend = "t", "m", "b"
    recorded = entry(ended, 2.0, 100.0, price)
    assert (recorded.tenant, recorded.model, recorded.backend, recorded.cause) == (
        "t",
        "m",
        "b",
        reasons.CLIENT_FIN.outcome.value,
    )
    assert recorded.account == booked(ended, 2.0, 100.0, price)
