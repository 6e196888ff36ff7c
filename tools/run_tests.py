"""make test: runs all tests, most of them in parallel, then those that need the machine to themselves.

usage: python -m tools.run_tests [PYTEST ARGUMENTS …]

Tests marked `alone` measure time, and other tests would disturb them. The rest start their servers on free ports and wait for
events, not for seconds; the tests of one file stay in one process, because they share its engine and its gateway.
"""

from __future__ import annotations

import os
import subprocess
import sys

NOTHING_CHOSEN = 5  # pytest's exit status when no test matches its arguments
WORKERS_PER_CORE = 2  # they mostly wait for processes


def main(arguments: list[str]) -> int:
    workers = str(WORKERS_PER_CORE * (os.cpu_count() or 1))
    pytest = [sys.executable, "-m", "pytest"]
    passes = [["-n", workers, "--dist", "loadfile", "-m", "not alone"], ["-m", "alone"]]
    codes = [subprocess.run([*pytest, *options, *arguments], check=False).returncode for options in passes]  # noqa: S603
    failed = [code for code in codes if code not in (0, NOTHING_CHOSEN)]
    return failed[0] if failed else min(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
