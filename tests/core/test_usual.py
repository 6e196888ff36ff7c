"""How long an engine usually takes to the first token, by prompt size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.core.admission.first_token_time import FirstTokenTimes


def test_each_octave_of_prompts_has_its_own() -> None:
    usual = FirstTokenTimes()
    assert usual.get(100) is None
    usual.observe(100, 0.1)
    usual.observe(1000, 0.4)
    assert usual.get(64) == usual.get(127) == 0.1 and usual.get(1023) == 0.4
    assert usual.get(200) == 0.2, "twice as long at most for twice the size"
    assert usual.get(5000) == pytest.approx(3.2)
    assert usual.get(10) == 0.1, "smaller than any that was seen"


def test_the_median_of_a_few_and_a_quarter_of_many() -> None:
    usual = FirstTokenTimes()
    for seconds in range(1, 16):
        usual.observe(100, seconds)
    assert usual.get(100) == 8
    usual.observe(100, 16)
    assert usual.get(100) == 5


def test_a_load_that_grows_does_not_pass_for_what_is_usual() -> None:
    usual = FirstTokenTimes()
    for _ in range(40):
        usual.observe(100, 0.1)
    for _ in range(64):
        usual.observe(100, 1.0)
    assert usual.get(100) is not None and 0.149 < (usual.get(100) or 0) < 0.16


def test_only_the_last_32_count() -> None:
    usual = FirstTokenTimes()
    for _ in range(200):
        usual.observe(100, 1.0)
    for _ in range(12):
        usual.observe(100, 0.1)
    assert usual.get(100) == 0.1


def test_while_it_queues_only_what_is_quicker_counts_and_only_at_first() -> None:
    usual = FirstTokenTimes()
    usual.observe_lower(100, 1.0)
    usual.observe_lower(100, 2.0)
    assert usual.get(100) == 1.0
    for _ in range(3):
        usual.observe_lower(100, 0.5)
    assert usual.get(100) == 0.5
    for _ in range(12):
        usual.observe(100, 0.5)
    for _ in range(32):
        usual.observe_lower(100, 0.1)
    assert usual.get(100) == 0.5


def test_what_was_known_of_a_size_can_be_dropped() -> None:
    usual = FirstTokenTimes()
    for _ in range(100):
        usual.observe(100, 0.1)
    usual.replace(100, 3.0)
    assert usual.get(100) == 3.0


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=120))
def test_it_is_never_beyond_what_was_seen(times: list[float]) -> None:
    usual = FirstTokenTimes()
    for seconds in times:
        usual.observe(100, seconds)
        got = usual.get(100)
        assert got is not None and min(times) <= got <= max(times)
