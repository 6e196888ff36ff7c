"""`tokens_per_minute` of several members: together they grant no more than one would, but for what is on its way."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangup.core.admission.tenants import Allowance
from hangup.core.members import TokenBank, TokenLevel, TokensCharged

RATE = 600
CALL = 50.0
STEP = st.tuples(st.sampled_from(["call", "report", "hear", "wait"]), st.integers(0, 2), st.floats(0.01, 2.0))


@given(st.lists(STEP, max_size=150))
@settings(deadline=None)
def test_a_call_is_granted_only_while_the_tokens_that_its_member_knows_of_are_within_the_quota(
    steps: list[tuple[str, int, float]],
) -> None:
    """Reports and levels take any time, in order. So all that is granted beyond the quota is what a member did not know yet."""
    bank, now, noted = TokenBank(), 0.0, [0.0] * 3
    members = [Allowance(RATE) for _ in range(3)]
    others_known = [0.0] * 3  # to each member: what the others have charged
    on_their_way: list[deque[tuple[float, TokenLevel]]] = [deque() for _ in members]
    for step, at, seconds in steps:
        member = members[at]
        if step == "wait":
            now += seconds
        elif step == "report":
            bank.note(f"m{at}", [TokensCharged("t", RATE, member.charged)], now)
            noted[at] = member.charged
            for other, queue in enumerate(on_their_way):
                (level,) = bank.levels(f"m{other}", now)
                queue.append((sum(noted) - noted[other], level))
        elif step == "hear" and on_their_way[at]:
            others_known[at], level = on_their_way[at].popleft()
            member.set_level(level.level, level.included, len(members), now)
        elif step == "call" and member.remaining(now) > 0:
            assert member.charged + others_known[at] <= RATE + now * RATE / 60 + 0.001
            member.charge(CALL)


@pytest.mark.parametrize("rounds", [1, 50])
def test_with_reports_after_every_call_the_quota_is_exact(rounds: int) -> None:
    bank, members, now = TokenBank(), [Allowance(RATE) for _ in range(3)], 0.0
    for turn in range(rounds * 20):
        member = members[turn % 3]
        if member.remaining(now) > 0:
            member.charge(CALL)
        bank.note(f"m{turn % 3}", [TokensCharged("t", RATE, member.charged)], now)
        for at, each in enumerate(members):
            ((_, level, included),) = bank.levels(f"m{at}", now)
            each.set_level(level, included, 3, now)
        now += 0.1
    used = sum(member.charged for member in members)
    assert RATE <= used <= RATE + now * RATE / 60 + CALL
    assert rounds == 1 or used >= now * RATE / 60, "nothing is lost either"


def test_without_the_hub_all_together_grant_no_more_than_the_rate() -> None:
    members = [Allowance(RATE) for _ in range(3)]
    for member in members:
        member.set_level(RATE, 0.0, 3, 0.0)
    assert members[0].remaining(1.0) == RATE
    assert members[0].remaining(3.0) == pytest.approx(RATE / 3), "its part of what was left"
    assert members[0].wait_s(3.0) == 0
    for member in members:
        for _ in range(100):
            if member.remaining(10.0) > 0:
                member.charge(CALL)
    assert sum(member.charged for member in members) <= RATE + 3 * CALL
    assert members[0].wait_s(10.0) == pytest.approx(-members[0].remaining(10.0) / (RATE / 3 / 60))
    members[0].set_level(5.0, members[0].charged, 3, 11.0)
    assert members[0].remaining(12.0) == pytest.approx(5.0 + RATE / 60), "the hub is back"


def test_a_member_that_left_takes_nothing_with_it_and_a_new_rate_counts() -> None:
    bank = TokenBank()
    bank.note("a", [TokensCharged("t", RATE, 100.0)], 0.0)
    bank.leave("a")
    assert bank.levels("b", 0.0) == [TokenLevel("t", RATE - 100.0, 0.0)] and len(bank) == 1
    bank.note("b", [TokensCharged("t", 60, 10.0)], 0.0)
    assert bank.levels("b", 60.0) == [TokenLevel("t", 60.0, 10.0)]


def test_a_new_hub_begins_with_the_lowest_level_that_is_known_and_charges_nothing_twice() -> None:
    bank = TokenBank()
    bank.learn("a", [TokensCharged("t", 600, 5_000.0, 300.0)], 0.0)
    bank.learn("b", [TokensCharged("t", 600, 80.0, 250.0)], 0.0)
    assert bank.levels("a", 0.0) == [TokenLevel("t", 250.0, 5_000.0)]
    bank.note("a", [TokensCharged("t", 600, 5_050.0, 999.0)], 0.0)
    assert bank.levels("b", 0.0) == [TokenLevel("t", 200.0, 80.0)]
    bank.learn("c", [TokensCharged("t", 600, 0.0, 600.0)], 0.0)
    assert bank.levels("c", 0.0) == [TokenLevel("t", 200.0, 0.0)], "a newcomer changes nothing"


def test_one_that_never_reached_a_hub_uses_its_share_until_it_does() -> None:
    allowance = Allowance(600)
    for _ in range(3):
        allowance.limit_to(0.5, 0.0)
    assert allowance.remaining(0.0) == 300.0
    allowance.charge(300.0)
    assert allowance.remaining(60.0) == 300.0, "half of the rate"
    allowance.set_level(500.0, allowance.charged, 2, 60.0)
    assert allowance.remaining(60.0) == 500.0
