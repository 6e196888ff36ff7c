"""Reading traces; an error is reported with its line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from hangup.sim import traces
from hangup.sim.load import Arrivals, Load, TraceRequest

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"


def test_azure(tmp_path: Path) -> None:
    path = tmp_path / "conv.csv"
    path.write_text(AZURE)
    first, second = traces.read(path)
    assert (first.prompt, first.output, second.prompt, second.output) == (374, 44, 396, 109)
    assert second.at_s - first.at_s == pytest.approx(4.314579, abs=1e-5)


def test_mooncake(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 3000, "input_length": 12, "output_length": 0, "hash_ids": [1]},
        {"timestamp": 0, "input_length": 7, "output_length": 5},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert traces.read(path) == [TraceRequest(0.0, 7, 5), TraceRequest(3.0, 12, 1)]


def test_servegen(tmp_path: Path) -> None:
    for name, rate in (("chunk-0", 2.0), ("chunk-1", 0.5)):
        windows = "".join(f"{start},{rate if start >= 3600 else 0},1.5,Gamma,1,1\n" for start in range(0, 7200, 600))
        (tmp_path / f"{name}-trace.csv").write_text(windows)
        tables = {
            "0": {"input_tokens": "{}", "output_tokens": "{}"},
            "3600": {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{7: 1.0}"},
        }
        (tmp_path / f"{name}-dataset.json").write_text(json.dumps(tables))
    requests = traces.read(tmp_path, seed=1)
    assert requests == traces.read(tmp_path, seed=1) != traces.read(tmp_path, seed=2)
    assert {r.tenant for r in requests} == {"chunk-0", "chunk-1"}
    assert {r.prompt for r in requests} == {100, 200} and {r.output for r in requests} == {7}
    assert 8000 < len(requests) < 10_000 and all(3600 <= r.at_s < 7200 for r in requests)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "when,what\n1,2\n", "expected the columns"),
        ("a.csv", AZURE + "yesterday,1,2\n", ":4: not a valid request"),
        ("a.jsonl", '{"timestamp": 1}\n', ":1: not a valid request: KeyError"),
        ("a.jsonl", "nonsense\n", ":1: not a valid request"),
        ("a.jsonl", "", "has no requests"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(traces.TraceError, match=message):
        traces.read(path)


def test_a_folder_without_traces(tmp_path: Path) -> None:
    with pytest.raises(traces.TraceError, match="ServeGen"):
        traces.read(tmp_path)


def test_a_traces_own_times_are_scaled_and_repeated() -> None:
    requests = [TraceRequest(at, 1, 1) for at in (0.0, 1.0, 9.0)]
    samples = Load(requests, arrivals=Arrivals("trace")).samples(rate=1.0, seed=1)
    times = [next(samples).at_s for _ in range(7)]
    assert times == sorted(times) and times[:3] == pytest.approx([0, 3 / 13.5, 27 / 13.5])
    assert times[6] == pytest.approx(6.0)  # a call a second on average


def test_random_gaps_have_the_rate_and_the_variation() -> None:
    samples = Load(traces.synthetic(1, 100), arrivals=Arrivals(cv=2.0)).samples(rate=5.0, seed=1)
    times = [next(samples).at_s for _ in range(20_000)]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.2, rel=0.05) and spread / mean == pytest.approx(2.0, rel=0.1)
