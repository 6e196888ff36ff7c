"""`hangup lint`: finds Python code whose inference outlives its client."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangup.errors import ConfigError

if TYPE_CHECKING:
    from hangup.lint.finding import Finding
    from hangup.lint.run import Report
    from hangup.lint.settings import LintSettings, SettingsTree

_EXAMPLES = """\
examples:
  hangup lint                                   the current folder
  hangup lint src --select HU001,HU002          only these rules
  hangup lint src --certainty likely            also what is only likely
  hangup lint src --format sarif > lint.sarif   for code scanning
  hangup lint src --write-baseline known.json   accept what is there, then lint with --baseline known.json
  hangup lint - --stdin-filename app.py         the standard input, as an editor sends it
  hangup lint --explain HU004                   why, with a bad and a good example

Ignore a finding with `# hangup: ignore[HU003]` on its line. Settings: [tool.hangup.lint] in pyproject.toml.
Exit status: 0 no findings, 1 findings, 2 error. Rules: `hangup docs lint`.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "lint",
        description="Reads Python source without importing it and finds inference that outlives its client.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("paths", nargs="*", type=Path, metavar="PATH", help="files and folders, or - (default: the current folder)")
    add("--format", choices=["text", "json", "sarif", "github"], default="text", help="(default: text)")
    add("--select", metavar="RULES", help="run only these rules: codes, names, prefixes (HU00), ALL")
    add("--extend-select", metavar="RULES", help="run these rules in addition")
    add("--ignore", metavar="RULES", help="skip these rules")
    add("--exclude", metavar="PATTERNS", help="leave out these files and folders, also if they are named")
    add("--include-tests", action="store_true", help="lint tests, examples, benchmarks and documentation, too")
    add("--certainty", choices=["certain", "likely"], help="report what is at least this certain (default: certain)")
    add("--target-version", metavar="VERSION", help="the code's Python (py312; default: the one that runs the linter)")
    add("--fix", action="store_true", help="fix what can be fixed safely: HU009 and unused ignore comments")
    add("--baseline", metavar="FILE", type=Path, help="report only findings that this file does not list")
    add("--write-baseline", metavar="FILE", type=Path, help="list all findings in this file and exit with 0")
    add("--stdin-filename", metavar="FILE", type=Path, help="what the standard input is called (with PATH -)")
    add("--config", metavar="FILE", type=Path, help="path of a pyproject.toml (default: the nearest with settings, per folder)")
    add("--no-cache", action="store_true", help="read every file again")
    add("--cache-dir", metavar="FOLDER", type=Path, help="(default: .hangup_cache in the project's root, if it has one)")
    add("--statistics", action="store_true", help="show only how many findings each rule has")
    add("--exit-zero", action="store_true", help="exit with 0 even if there are findings")
    add("--explain", metavar="RULE", help="explain a rule and exit")
    add("--list", action="store_true", help="list the rules and exit")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.list or arguments.explain:
        return _list() if arguments.list else _explain(arguments.explain)
    tree = _settings(arguments)
    report = _lint(arguments, tree)
    findings = report.findings
    if arguments.write_baseline is not None:
        from hangup.lint.baseline import write_baseline  # noqa: PLC0415 - other commands need not pay for the rules

        count = write_baseline(arguments.write_baseline, findings)
        print(f"hangup: {_count(count, 'finding')} written to {arguments.write_baseline}", file=sys.stderr)
        return 0
    findings = _without_known(arguments, tree, findings)
    fixed: set[Finding] = set()
    if arguments.fix and not _is_stdin(arguments):
        from hangup.lint.fix import fix_files  # noqa: PLC0415

        fixed = fix_files(findings)
        findings = [f for f in findings if f not in fixed]
    _print(arguments, findings)
    _summarize(report, findings, len(fixed))
    return 1 if findings and not arguments.exit_zero else 0


def _settings(arguments: argparse.Namespace) -> SettingsTree:
    """Return the settings of each folder, changed by the flags."""
    from hangup.lint.finding import Certainty  # noqa: PLC0415
    from hangup.lint.settings import SettingsTree, read_settings, target_version  # noqa: PLC0415

    given: dict[str, Any] = {
        flag: tuple(name.strip() for name in value.split(",") if name.strip())
        for flag in ("select", "extend_select", "ignore", "exclude")
        if (value := getattr(arguments, flag)) is not None
    }
    if arguments.certainty is not None:
        given["certainty"] = Certainty(arguments.certainty)
    target = target_version(arguments.target_version) if arguments.target_version else None

    def change(settings: LintSettings) -> LintSettings:
        settings = replace(settings, **given)
        if arguments.include_tests:
            settings = replace(settings, include_tests=True)
        if target is not None:
            settings = replace(settings, target=target)
        settings.codes()
        return settings

    if arguments.config is not None and not arguments.config.is_file():
        raise ConfigError([f"{arguments.config}: no such file or directory"])
    tree = SettingsTree(read_settings(arguments.config) if arguments.config else None, change)
    tree.of(_folder((arguments.paths or [Path()])[0]))  # wrong settings are an error even if nothing is linted
    return tree


def _lint(arguments: argparse.Namespace, tree: SettingsTree) -> Report:
    from hangup.lint.cache import FOLDER  # noqa: PLC0415
    from hangup.lint.run import lint_paths  # noqa: PLC0415

    settings = tree.of(_folder((arguments.paths or [Path()])[0]))
    usual = settings.root / FOLDER if settings.in_project else None
    cache = None if arguments.no_cache else arguments.cache_dir or usual
    if _is_stdin(arguments):
        if len(arguments.paths) > 1:
            raise ConfigError(["- is the standard input, and no other path can be linted with it"])
        name = arguments.stdin_filename or Path("stdin.py")
        return lint_paths([], tree, cache, (name, sys.stdin.buffer.read()))
    return lint_paths(arguments.paths or [Path()], tree, cache)


def _is_stdin(arguments: argparse.Namespace) -> bool:
    return Path("-") in arguments.paths


def _without_known(arguments: argparse.Namespace, tree: SettingsTree, findings: list[Finding]) -> list[Finding]:
    from hangup.lint.baseline import without_known  # noqa: PLC0415

    file = arguments.baseline or tree.of(_folder((arguments.paths or [Path()])[0])).baseline
    return without_known(file, findings) if file is not None else findings


def _print(arguments: argparse.Namespace, findings: list[Finding]) -> None:
    from hangup.lint.report import FORMATS  # noqa: PLC0415

    if arguments.statistics:
        for (code, name), count in sorted(Counter((f.code, f.name) for f in findings).items()):
            print(f"{count:5}  {code} {name}")
    elif text := FORMATS[arguments.format](findings):
        print(text)


def _summarize(report: Report, findings: list[Finding], fixed: int) -> None:
    files = _count(report.files, "file")
    say = f"{_count(len(findings), 'finding')} in {files}" if findings else f"no findings in {files}"
    if fixed:
        say += f", {fixed} fixed"
    if report.likely:
        say += f"; {report.likely} likely with --certainty likely"
    print(f"hangup: {say}", file=sys.stderr)
    if report.too_new:
        running = ".".join(map(str, sys.version_info[:2]))
        what = _count(len(report.too_new), "file")
        print(f"hangup: {what} not checked: newer syntax than Python {running}, which runs hangup", file=sys.stderr)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _list() -> int:
    from hangup.lint import RULES  # noqa: PLC0415

    for rule in RULES.values():
        print(f"{rule.code}  {rule.severity.value:7}  {'' if rule.default else '(off) '}{rule.name}: {rule.summary}")
    return 0


def _explain(name: str) -> int:
    from hangup.lint import RULES  # noqa: PLC0415
    from hangup.lint.settings import expand  # noqa: PLC0415

    for code in sorted(expand([name]) & RULES.keys()):
        rule = RULES[code]
        print(f"{code} {rule.name}\n\n{rule.summary} {rule.why}\n\nInstead: {rule.hint}.\n")
        print(f"Bad:\n\n{rule.bad}\nGood:\n\n{rule.good}")
    return 0


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent
