"""Reads request traces (Azure's CSV, Mooncake's JSONL, a ServeGen folder), or makes up a synthetic one."""

from __future__ import annotations

import csv
import json
import math
import random
from ast import literal_eval
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from hangup.errors import HangupError
from hangup.sim.load import TraceRequest

_HOUR_S = 3600.0


class TraceError(HangupError):
    """A trace cannot be read. The message says where, and what was expected."""


def read(path: Path, seed: int = 0) -> list[TraceRequest]:
    """Read a trace in the format that its path suggests: a folder is ServeGen's, a .csv is Azure's, else Mooncake's."""
    if path.is_dir():
        return _servegen(path, seed)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = _azure(file, path) if path.suffix == ".csv" else _mooncake(file, path)
            requests = sorted(lines, key=lambda request: request.at_s)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from None
    if not requests:
        raise TraceError(f"{path} has no requests")
    return requests


def _azure(file: Any, path: Path) -> Iterator[TraceRequest]:
    """Parse rows of TIMESTAMP,ContextTokens,GeneratedTokens."""
    rows = csv.DictReader(file)
    expected = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
    if not expected <= set(rows.fieldnames or ()):
        raise TraceError(f"{path}:1: expected the columns {', '.join(sorted(expected))}")
    for number, row in enumerate(rows, 2):
        with _line(path, number):
            yield _request(_timestamp(row["TIMESTAMP"]), row["ContextTokens"], row["GeneratedTokens"])


def _timestamp(text: str) -> float:
    """Parse 2023-11-16 18:15:46.6805900: it has seven fractional digits, one more than datetime accepts."""
    return datetime.fromisoformat(text[:26]).timestamp()


def _mooncake(file: Any, path: Path) -> Iterator[TraceRequest]:
    """Parse lines of {"timestamp": ms, "input_length": …, "output_length": …}."""
    for number, text in enumerate(file, 1):
        if text.strip():
            with _line(path, number):
                row = json.loads(text)
                at_s, tenant = row["timestamp"] / 1000, str(row.get("tenant", "default"))
                yield _request(at_s, row["input_length"], row["output_length"], tenant)


def _request(at_s: float, prompt: Any, output: Any, tenant: str = "default") -> TraceRequest:
    return TraceRequest(at_s, max(int(prompt), 1), max(int(output), 1), tenant)


@contextmanager
def _line(path: Path, number: int) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path}:{number}: not a valid request: {type(error).__name__}: {error}") from None


def _servegen(folder: Path, seed: int) -> list[TraceRequest]:
    """Generate requests from two files per client, fitted to real clients; use the hour with the most calls.

    …-trace.csv has the windows (start, rate, cv, …), …-dataset.json the lengths of prompts and answers.
    """
    clients = [_ServeGenClient(path) for path in sorted(folder.rglob("*trace.csv"))]
    if not clients:
        raise TraceError(f"{folder}: expected files named …trace.csv and …dataset.json, as in ServeGen")
    calls_from: Counter[float] = Counter()
    for client in clients:
        for start, rate, _ in client.windows:
            calls_from[start // _HOUR_S * _HOUR_S] += int(rate * 1000)
    busiest = max(calls_from, key=lambda hour: (calls_from[hour], -hour))
    rng = random.Random(seed)  # noqa: S311 (a seed must give one result)
    requests = [request for client in clients for request in client.requests(busiest, rng)]
    if not requests:
        raise TraceError(f"{folder}: the trace has no requests")
    return sorted(requests, key=lambda request: request.at_s)


class _ServeGenClient:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = path.name.removesuffix("trace.csv").strip("-") or path.parent.name
        dataset = path.with_name(path.name.replace("trace.csv", "dataset.json"))
        try:
            with path.open(newline="") as file:
                rows = [row for row in csv.reader(file) if row and row[0].replace(".", "").isdigit()]
            self.windows = [(float(row[0]), float(row[1]), float(row[2])) for row in rows]
            self._lengths = {float(start): tables for start, tables in json.loads(dataset.read_text()).items()}
        except (OSError, ValueError, IndexError) as error:
            raise TraceError(f"{path}: {error}") from None

    def requests(self, hour: float, rng: random.Random) -> Iterator[TraceRequest]:
        length = self.windows[1][0] - self.windows[0][0] if len(self.windows) > 1 else _HOUR_S
        for start, rate, cv in self.windows:
            if rate > 0 and hour <= start < hour + _HOUR_S:
                prompts, outputs = self._table(start, "input_tokens"), self._table(start, "output_tokens")
                if not prompts or not outputs:
                    continue
                shape = 1 / max(cv, 0.1) ** 2
                at = rng.gammavariate(shape, 1 / (rate * shape))
                while at < length:
                    yield _request(start + at, _draw(prompts, rng), _draw(outputs, rng), self._name)
                    at += rng.gammavariate(shape, 1 / (rate * shape))

    def _table(self, start: float, name: str) -> dict[int, float]:
        """Return the length table that applies at that time, or else the earliest known one."""
        known = [at for at, tables in self._lengths.items() if tables[name] not in ("{}", {})]
        at = max((at for at in known if at <= start), default=min(known, default=None))
        if at is None:
            return {}
        table = self._lengths[at][name]
        return dict(literal_eval(table)) if isinstance(table, str) else {int(k): v for k, v in table.items()}


def _draw(table: dict[int, float], rng: random.Random) -> int:
    return rng.choices(list(table), list(table.values()))[0]


def synthetic(seed: int, count: int = 20_000) -> list[TraceRequest]:
    """Make up requests like those of a busy chat service: log-normal, prompts around 600 tokens, answers around 160."""
    rng = random.Random(seed)  # noqa: S311 (a seed must give one result)
    return [
        _request(float(at), rng.lognormvariate(math.log(600), 1.1), rng.lognormvariate(math.log(160), 0.8))
        for at in range(count)
    ]
