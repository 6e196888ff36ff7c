"""The results of one part of a suite, each beside the bar that it must meet."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bar:
    """A figure and its bar: at least `bound`, or at most `bound` if `at_most`."""

    name: str
    value: float
    bound: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        if math.isnan(self.value):
            return False
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        return f"{self.name} {self.value:.3g} ({sign} {self.bound:g}{'' if self.met else ' MISSED'})"


@dataclass
class Row:
    name: str
    bars: list[Bar] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def show(self) -> None:
        print(f"  {self.name:<44} " + "   ".join(map(str, self.bars)), flush=True)
        parts = [f"{name} {_short(value)}" for name, value in self.figures.items() if _finite(value) is not None]
        print(" " * 6 + ", ".join(parts), flush=True)

    def as_json(self) -> dict[str, Any]:
        bars = {bar.name: {"value": _finite(bar.value), "bound": bar.bound, "met": bar.met} for bar in self.bars}
        return {"bars": bars, **{name: _finite(value) for name, value in self.figures.items()}}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def ratio(value: float, base: float) -> float:
    return value / base if base else float("nan")


def verdict(rows: list[Row]) -> str:
    bars = [bar for row in rows for bar in row.bars]
    missed = [f"{row.name}: {bar.name}" for row in rows for bar in row.bars if not bar.met]
    return f"{len(bars) - len(missed)} of {len(bars)} bars met" + "".join(f"\n    missed: {name}" for name in missed)
