"""One deadline for work in several stages."""

from __future__ import annotations

from hangup.core.deadline import Deadline


def test_each_stage_leaves_time_to_those_after_it() -> None:
    deadline = Deadline(110.0)
    assert deadline.left(100.0) == 10.0 and deadline.left(111.0) == 0.0
    part = deadline.part(0.75, 102.0)
    assert part.at == 108.0 and deadline.left(part.at) == 2.0
    assert deadline.part(0.75, 120.0).left(120.0) == 0.0
