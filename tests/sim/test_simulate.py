"""`hangup simulate`, as users run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hangup.cli.main import main

QUICK = ["simulate", "--calls", "200", "--load", "0.5,2", "--engine", "slots=4"]


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--policy", "hangup,direct"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "goodput" in lines[0] and "engine queue" in lines[0]
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["0.5×", "hangup"],
        ["0.5×", "direct"],
        ["2×", "hangup"],
        ["2×", "direct"],
    ]
    assert "without hangup" in lines[-1]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["load"] for row in rows] == [0.5, 2]
    names = {"load", "policy", "goodput_ratio", "waste_share", "refused_share", "ttft_s_p50", "ttft_s_p99"}
    assert all(names <= set(row) for row in rows)


def test_json_of_one_seed_is_the_same_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        assert main([*QUICK, "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_images_in_some_of_the_calls(capsys: pytest.CaptureFixture[str]) -> None:
    medians = []
    for share in ("0", "0.5"):
        assert main([*QUICK, "--json", "--images", share]) == 0
        medians.append(json.loads(capsys.readouterr().out)["rows"][0]["ttft_s_p50"])
    assert medians[1] > medians[0]


@pytest.mark.parametrize("name", ["out.png", "out.html"])
def test_plots(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert main([*QUICK, "--policy", "hangup,direct", "--plot", str(path)]) == 0
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG") if name.endswith("png") else data.count(b"<svg") == 5


def test_how_many_backends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--calls", "300", "--rate", "5", "--backends", "1,2,4", "--engine", "slots=8"]) == 0
    assert "at least 99% of the calls" in capsys.readouterr().out


def test_values_of_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--set", "queue_s=1,5"]) == 0
    out = capsys.readouterr().out
    assert "hangup queue_s=1" in out and "hangup queue_s=5" in out


def test_the_configuration_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "hangup.toml"
    config.write_text("slots = 2\n[limits]\nqueue_depth_max = 0\n")
    assert main([*QUICK, "--config", str(config), "--json"]) == 0
    tight = json.loads(capsys.readouterr().out)["rows"]
    assert main([*QUICK, "--json"]) == 0
    loose = json.loads(capsys.readouterr().out)["rows"]
    assert tight[0]["refused_share"] > loose[0]["refused_share"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "magic"], "unknown policy magic"),
        (["--engine", "slotz=4"], "unknown key slotz"),
        (["--engine", "slots=many"], "slots must be a number"),
        (["--set", "qeue_s=4"], "unknown limit qeue_s"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv"),
        (["--plot", "out.gif"], "takes a .png or an .html file"),
    ],
)
def test_mistakes(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, *flags]) == 1
    assert message in capsys.readouterr().err
