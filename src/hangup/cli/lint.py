"""`hangup lint`: finds Python code whose inference outlives its client."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from hangup.errors import ConfigError

_EXAMPLES = """\
examples:
  hangup lint                                   the current folder
  hangup lint src --select HU001,HU002          only these rules
  hangup lint src --format sarif > lint.sarif   for code scanning
  hangup lint --list                            all rules

Suppress a finding with `# hangup: ignore[HU003]` on its line. Settings: [tool.hangup.lint] in pyproject.toml.
Exit status: 0 no findings, 1 findings, 2 error. Rules: docs/lint.md.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "lint",
        help="find inference in Python code that outlives its client",
        description="Reads Python source without importing it and finds inference that outlives its client.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="files and folders (default: the current folder)")
    parser.add_argument("--format", choices=["text", "json", "sarif", "github"], default="text", help="(default: text)")
    parser.add_argument("--select", metavar="RULES", help="run only these rules: codes, names, prefixes (HU00), ALL")
    parser.add_argument("--extend-select", metavar="RULES", help="run these rules in addition")
    parser.add_argument("--ignore", metavar="RULES", help="skip these rules")
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="path of a pyproject.toml (default: the nearest one in a parent folder)"
    )
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 even if there are findings")
    parser.add_argument("--list", action="store_true", help="list the rules and exit")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from hangup.lint.report import FORMATS  # noqa: PLC0415 - other commands need not pay for the rules
    from hangup.lint.run import lint_paths  # noqa: PLC0415
    from hangup.lint.settings import find_settings, read_settings  # noqa: PLC0415

    if arguments.list:
        return _list()
    paths = arguments.paths or [Path()]
    settings = _read(arguments.config, read_settings) if arguments.config else find_settings(_folder(paths[0]))
    for flag in ("select", "extend_select", "ignore"):
        if (given := getattr(arguments, flag)) is not None:
            settings = replace(settings, **{flag: tuple(name.strip() for name in given.split(",") if name.strip())})
    settings.codes()
    report = lint_paths(paths, settings)
    if text := FORMATS[arguments.format](report.findings):
        print(text)
    files = f"{report.files} file{'' if report.files == 1 else 's'}"
    print(
        f"hangup: {len(report.findings)} finding{'' if len(report.findings) == 1 else 's'} in {files}"
        if report.findings
        else f"hangup: no findings in {files}",
        file=sys.stderr,
    )
    return 1 if report.findings and not arguments.exit_zero else 0


def _list() -> int:
    from hangup.lint import RULES  # noqa: PLC0415

    for rule in RULES.values():
        print(f"{rule.code}  {rule.severity.value:7}  {'' if rule.default else '(off) '}{rule.name}: {rule.summary}")
    return 0


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _read(path: Path, read: Any) -> Any:
    if not path.is_file():
        raise ConfigError([f"{path}: no such file or directory"])
    return read(path)
