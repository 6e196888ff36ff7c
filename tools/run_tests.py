"""make test: runs all tests, most of them in parallel, then those that need the machine to themselves.

usage: python -m tools.run_tests [--serial] [--retry] [PYTEST ARGUMENTS …]

Tests marked `alone` measure time, and other tests would disturb them. The rest start their servers on free ports and wait for
events, not for seconds; the tests of one file stay in one process, because they share its engine and its gateway.

With `--serial`, all tests run in one process. With `--retry`, the tests that failed run once more, in one process. Those that
pass now are listed as FLAKY and do not fail the run: a busy CI machine must not hold up a change. A flaky test is still a bug,
in the test or in hangup: find it.

A test that hangs fails after `timeout` (pyproject.toml). One that cannot even be interrupted ends its process after
`faulthandler_timeout`, and the run with it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

NOTHING_CHOSEN = 5  # pytest's exit status when no test matches its arguments
TESTS_FAILED = 1  # pytest's exit status when tests ran and some failed; anything else is no test's fault
WORKERS_PER_CORE = 2  # they mostly wait for processes
RETRIES_MAX = 10  # more failures than this are no accident
FAILED = Path(".venv/.pytest_cache/v/cache/lastfailed")  # the names of failed tests; cache_dir in pyproject.toml


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--serial", action="store_true")
    parser.add_argument("--retry", action="store_true")
    chosen, arguments = parser.parse_known_args(arguments)
    workers = str(WORKERS_PER_CORE * (os.cpu_count() or 1))
    # xdist would give a test that ends its process to the next process, again and again.
    parallel = ["-n", workers, "--dist", "loadfile", "--max-worker-restart", "0", "-m", "not alone"]
    beside = [parallel, ["-m", "alone"]]
    FAILED.unlink(missing_ok=True)
    codes = [_pytest([*options, *arguments]) for options in ([[]] if chosen.serial else beside)]
    bad = {code for code in codes if code not in (0, NOTHING_CHOSEN)}
    if not bad:
        return min(codes)
    if chosen.retry and bad == {TESTS_FAILED}:
        return _retry()
    return max(bad)


def _pytest(options: list[str]) -> int:
    # The tests start thousands of processes. Where bytecode is not kept, half of what each of them costs is compiling hangup.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as where a script runs `make test &`: tests that send it would wait
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.run([sys.executable, "-m", "pytest", *options], check=False, env=environment).returncode  # noqa: S603


def _retry() -> int:
    if not FAILED.exists():  # without other processes beside it, a test that hangs ends the run
        return TESTS_FAILED
    failed = sorted(json.loads(FAILED.read_text()))
    if len(failed) > RETRIES_MAX:
        print(f"{len(failed)} tests failed: too many for a retry.", flush=True)
        return TESTS_FAILED
    print(f"Running {len(failed)} failed tests once more.", flush=True)
    code = _pytest(failed)
    if code == 0:
        print("\n".join(f"FLAKY {name}: failed, then passed" for name in failed), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
