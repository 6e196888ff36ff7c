"""Loops of many backends, which begin together, do not wake together."""

from __future__ import annotations

from hangup.gateway.backends.spread import spread


def test_pauses_are_up_to_a_fifth_shorter_and_differ() -> None:
    pauses = [spread(5.0) for _ in range(1000)]
    assert 4.0 <= min(pauses) < 4.2 and 4.8 < max(pauses) <= 5.0
    assert max(sum(at <= pause < at + 0.1 for pause in pauses) for at in (4.0 + n / 10 for n in range(10))) < 200
