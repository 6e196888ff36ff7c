"""The models' sizes: one that answers quickly, and one whose prefill of a long prompt takes many seconds on a CPU."""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    width: int
    layers: int

    @property
    def feed_forward(self) -> int:
        return self.width * 3


SIZES = {"tiny": Size(256, 4), "large": Size(768, 12)}  # 5 and 90 million weights
HEADS, KV_HEADS, CONTEXT = 8, 4, 32768
SPREAD = 0.05  # of the random weights
