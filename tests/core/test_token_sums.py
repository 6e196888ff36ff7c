"""The tokens that all members received from one engine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangup.core.members import TokenRow, TokenSums

OWN = TokenRow(seen=5, unseen=1, call_s=2.0, served_s=1.0, calls=1)


def test_what_members_received_is_added_up() -> None:
    sums = TokenSums()
    other = TokenRow(seen=7, unseen=2, call_s=3.0, served_s=3.0, calls=0, textless=True)
    assert sums.add_up(OWN, [], {}) == (OWN, True)
    assert sums.add_up(OWN, ["a"], {"a": other}) == (TokenRow(12, 3, 5.0, 4.0, 1, True), True)


def test_without_an_answer_there_is_no_sum_and_nothing_is_lost() -> None:
    sums = TokenSums()
    sums.add_up(OWN, ["a"], {"a": TokenRow(seen=7)})
    assert sums.add_up(OWN, ["a"], {}) is None
    total, steady = sums.add_up(OWN, ["a"], {"a": TokenRow(seen=9)}) or (None, None)
    assert total is not None and total.seen == 14 and steady


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3), max_size=20))
def test_tokens_never_become_fewer_and_every_departure_shows(rounds: list[dict[str, int]]) -> None:
    """`rounds`: the members that are here, and what each received since the round before; one that returns is a new one."""
    sums, here, before, in_all = TokenSums(), dict[str, int](), 0, 0
    for gained in rounds:
        left = here.keys() - gained.keys()
        here = {name: here.get(name, 0) + tokens for name, tokens in gained.items()}
        in_all += sum(gained.values())
        found = sums.add_up(TokenRow(), here, {name: TokenRow(seen=seen) for name, seen in here.items()})
        assert found is not None
        assert found[0].seen == in_all >= before and found[1] == (not left)
        before = in_all
