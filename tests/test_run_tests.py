"""tools/run_tests: how the tests themselves are run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ASKS = """
import signal

def test_an_interrupt_arrives():
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
"""


def test_in_the_background_of_a_script_tests_can_be_interrupted(tmp_path: Path) -> None:
    (tmp_path / "test_asks.py").write_text(ASKS)
    command = [sys.executable, "-m", "tools.run_tests", "--serial"]
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]  # as a shell starts `make test &`
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(ignoring, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
