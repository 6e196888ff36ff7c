"""Draws the figures of docs/ from the measurements beside them: docs/figures/NAME.csv becomes NAME.svg.

demo.txt holds the output of `hangup demo`; it becomes the first picture of README.md.

usage: python -m tools.plots
"""

from __future__ import annotations

import csv
import html
import math
from dataclasses import dataclass
from pathlib import Path

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
_LEFT, _RIGHT, _TOP, _BOTTOM, _WIDTH, _HEIGHT = 56, 56, 40, 44, 760, 320
_COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#8d6a9f")


@dataclass(frozen=True)
class Line:
    label: str
    points: list[tuple[float, float]]
    colour: str
    right: bool = False  # drawn on the right-hand axis


@dataclass(frozen=True)
class Frame:
    title: str
    x_label: str
    x_max: float
    y_min: float
    y_max: float
    right_max: float = 0.0  # maximum of the right-hand axis; 0 for no such axis

    def x(self, value: float) -> float:
        return _LEFT + value / self.x_max * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float, right: bool = False) -> float:
        low, high = (0.0, self.right_max) if right else (self.y_min, self.y_max)
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)


def draw(frame: Frame, lines: list[Line], marks: list[tuple[float, str]] | None = None, spacing: int = 170) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 18, frame.title, size=14),
        _text(_WIDTH / 2, _HEIGHT - 8, frame.x_label),
    ]
    for step in range(5):
        value = frame.y_min + (frame.y_max - frame.y_min) * step / 4
        y = frame.y(value)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{value:g}", anchor="end"))
        parts.append(_text(frame.x(frame.x_max * step / 4), _HEIGHT - _BOTTOM + 16, f"{frame.x_max * step / 4:g}"))
        if frame.right_max:
            parts.append(_text(_WIDTH - _RIGHT + 6, y + 4, f"{frame.right_max * step / 4:g}", anchor="start"))
    for at, label in marks or []:
        x = frame.x(at)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="#999"/>')
        parts.append(_text(x + 4, _TOP + 12, label, anchor="start"))
    for index, line in enumerate(lines):
        points = " ".join(f"{frame.x(x):.1f},{frame.y(y, line.right):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="2"/>')
        parts.append(_text(_LEFT + 10 + index * spacing, 34, f"— {line.label}", anchor="start", colour=line.colour))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{text}</text>'


def loss(rows: list[dict[str, str]]) -> str:
    main = [row for row in rows if row["model"] == "main"]
    names = {"next": "next token", "mtp_1": "MTP, first step", "mtp_3": "MTP, third step"}
    lines = [
        Line(label, [(float(row["step"]), float(row[name])) for row in main], colour)
        for (name, label), colour in zip(names.items(), _COLOURS, strict=False)
    ]
    frame = Frame("The built-in model's loss on text that it was not trained on", "step", float(main[-1]["step"]), 3.0, 7.0)
    return draw(frame, lines)


def spike(rows: list[dict[str, str]]) -> str:
    seconds = [float(row["second"]) for row in rows]
    third = len(rows) // 3
    done, used = ([float(row[name]) for row in rows] for name in ("completed_per_s", "gpu_utilisation"))
    # Calls of equal length end in step; the mean of four seconds shows the rate.
    smooth = [sum(done[max(0, at - 3) : at + 1]) / len(done[max(0, at - 3) : at + 1]) for at in range(len(done))]
    lines = [
        Line("completed requests/s", list(zip(seconds, smooth, strict=True)), _COLOURS[0]),
        Line("GPU utilisation, %", list(zip(seconds, used, strict=True)), _COLOURS[1], right=True),
    ]
    labels = ("nobody leaves", "half leave, nobody tells the engine", "half leave, the engine is told")
    marks = [(max(0.0, seconds[index * third] - 1), label) for index, label in enumerate(labels)]
    last = 4 * math.ceil(seconds[-1] / 4)
    return draw(Frame("48 clients on 32 slots of an H200, a Llama of 1 B", "seconds", last, 0, 36, 100), lines, marks)


def stops(rows: list[dict[str, str]]) -> str:
    lines = [
        Line(
            f"GPU utilisation behind {by if by == 'hangup' else 'a ' + by}, %",
            [(max(float(row["second"]), 0.0), float(row["gpu_utilisation"])) for row in rows if row["by"] == by],
            colour,
        )
        for by, colour in (("plain proxy", _COLOURS[1]), ("hangup", _COLOURS[0]))
    ]
    frame = Frame("32 clients of an H200 hang up, all at once", "seconds after that", 20, 0, 100)
    return draw(frame, lines, spacing=290)


def terminal(text: str) -> str:
    """Draw a terminal that shows the text."""
    lines = text.rstrip().splitlines()
    width, height = 8 * max(map(len, lines)) + 32, 20 * len(lines) + 32
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="monospace" font-size="13">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e1e2e"/>',
    ]
    for index, line in enumerate(lines):
        parts.append(f'<text x="16" y="{34 + 20 * index}" fill="#eee" xml:space="preserve">{html.escape(line)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    for name, make in (("engine-loss", loss), ("engine-spike", spike), ("gpu-stops", stops)):
        with (FIGURES / f"{name}.csv").open(newline="") as file:
            (FIGURES / f"{name}.svg").write_text(make(list(csv.DictReader(file))))
    (FIGURES / "demo.svg").write_text(terminal((FIGURES / "demo.txt").read_text()))


if __name__ == "__main__":
    main()
