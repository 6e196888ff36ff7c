"""Loops of many backends, which begin together, do not wake together."""

from __future__ import annotations

import time

from hangup.gateway.backends.spread import spread


def test_pauses_are_about_a_fifth_shorter_at_most_and_differ() -> None:
    pauses = [spread(5.0) for _ in range(1000)]
    assert 3.95 <= min(pauses) < 4.2 and 4.8 < max(pauses) <= 5.0
    assert max(sum(at <= pause < at + 0.1 for pause in pauses) for at in (4.0 + n / 10 for n in range(10))) < 200


def test_those_that_would_wake_one_after_another_wake_together() -> None:
    """With a thousand backends, a turn of the loop for each costs more than what they do."""
    began = time.monotonic()
    ends = [time.monotonic() + spread(5.0) for _ in range(1000)]
    apart = {round(end / 0.05) for end in ends}
    took_s = time.monotonic() - began
    assert all(abs(end - round(end / 0.05) * 0.05) <= took_s + 0.001 for end in ends)
    assert 15 <= len(apart) <= 22 + took_s / 0.05


def test_short_pauses_are_only_shortened() -> None:
    assert all(0.04 <= spread(0.05) <= 0.05 for _ in range(100))
