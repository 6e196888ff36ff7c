"""The calls that a compiled gateway is trained with are calls that a gateway serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench import training

ROOT = Path(__file__).parents[1]


def test_every_kind_of_call_is_answered() -> None:
    run = subprocess.run([sys.executable, "-m", "bench.training", "2"], cwd=ROOT, capture_output=True, text=True, check=False)
    wanted = 2 * len(training.KINDS)
    assert (run.returncode, run.stdout) == (0, f"{wanted} of {wanted} calls answered\n"), run.stderr
