"""`python -m fuzz [--seconds 60] [--seed N] [--case NUMBER]`; see the package."""

from __future__ import annotations

import argparse
import secrets
import sys

from fuzz.run import Report, again, fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description="Fuzzes the gateway; exits with 1 if anything was found.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, help="for the same cases again; their order between threads differs")
    parser.add_argument("--case", type=int, metavar="NUMBER", help="one case again, in all its forms")
    arguments = parser.parse_args()
    if arguments.case is not None:
        return print_report(again(arguments.case))
    seed = arguments.seed if arguments.seed is not None else secrets.randbits(32)
    print(f"fuzz: {arguments.seconds:g} s, seed {seed}", flush=True)
    return print_report(fuzz(arguments.seconds, seed))


def print_report(report: Report) -> int:
    for row in report.found:
        print(f"FOUND {row}", flush=True)
    print(f"fuzz: {len(report.found)} found in {sum(report.counts.values())} cases")
    return 1 if report.found else 0


if __name__ == "__main__":
    sys.exit(main())
