"""`hangup lint` as a command: formats, exit codes, settings, exclusions, and speed."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path

import pytest

from hangup.cli.main import main
from hangup.lint import RULES, lint_source

BAD = RULES["HU002"].bad


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(BAD)
    (tmp_path / "fine.py").write_text(RULES["HU002"].good)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "other.py").write_text(BAD)
    return tmp_path


def lint(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["lint", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_exit_codes_are_those_of_ruff(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(capsys, project)[0] == 1
    assert lint(capsys, project, "--exit-zero")[0] == 0
    assert lint(capsys, project / "fine.py")[0] == 0
    assert lint(capsys, project / "missing.py")[0] == 2
    assert lint(capsys, project, "--select", "HU999")[0] == 2


def test_text_has_place_rule_and_hint(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = lint(capsys, project)
    first, hint = out.splitlines()
    assert first.startswith(f"{project}/app.py:8:5: HU002 ") and first.endswith("[task-handle-dropped]")
    assert hint.startswith("  hint: ")
    assert err == "hangup: 1 finding in 2 files\n"


def test_json_sarif_and_github(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = json.loads(lint(capsys, project, "--format", "json")[1])
    assert (row["code"], row["line"], row["severity"]) == ("HU002", 8, "error")
    sarif = json.loads(lint(capsys, project, "--format", "sarif")[1])
    assert sarif["version"] == "2.1.0"
    run = sarif["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(RULES)
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 8
    (line,) = lint(capsys, project, "--format", "github")[1].splitlines()
    assert line.startswith("::error file=") and "title=HU002 task-handle-dropped::" in line


def test_findings_are_ignored_by_comment(project: Path) -> None:
    line = "asyncio.create_task(engine.generate(prompt))"
    assert lint_source(BAD.replace(line, f"{line}  # hangup: ignore[HU002]")) == []
    assert lint_source(BAD.replace(line, f"{line}  # hangup: ignore")) == []
    assert lint_source(BAD.replace(line, f"{line}  # hangup: ignore[HU001, HU002]")) == []
    assert lint_source(BAD.replace(line, f"{line}  # hangup: ignore[HU001]")) != []
    assert lint_source(f"# hangup: ignore-file[HU002]\n{BAD}") == []


def test_settings_come_from_pyproject(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = project / "pyproject.toml"
    settings.write_text('[tool.hangup.lint]\nignore = ["HU002"]\n')
    assert lint(capsys, project)[0] == 0
    assert lint(capsys, project, "--ignore", "HU001")[0] == 1, "the flag replaces the setting"
    settings.write_text('[tool.hangup.lint]\nexclude = ["app.py"]\n')
    assert lint(capsys, project)[0] == 0
    settings.write_text('[tool.hangup.lint.per-file-ignores]\n"app.py" = ["task-handle-dropped"]\n')
    assert lint(capsys, project)[0] == 0
    settings.write_text('[tool.hangup.lint]\nselect = ["HU01"]\nextend-select = ["HU002"]\n')
    assert lint(capsys, project)[0] == 1


def test_bad_settings_are_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text('[tool.hangup.lint]\nselect = "HU001"\nselct = []\n')
    code, _, err = lint(capsys, project)
    assert code == 2
    assert "unknown setting 'selct'" in err and "select must be a list of strings" in err


def test_a_file_that_cannot_be_parsed_is_a_finding(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "broken.py").write_text("async def f(:\n    pass\n")
    code, out, _ = lint(capsys, project / "broken.py")
    assert code == 1 and "HU000 cannot parse" in out


def test_many_files_are_spread_over_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(70):
        (tmp_path / f"app{number:02}.py").write_text(BAD)
    code, out, _ = lint(capsys, tmp_path, "--format", "github")
    assert code == 1 and len(out.splitlines()) == 70


def test_every_rule_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    out = lint(capsys, "--list")[1]
    assert [line[:5] for line in out.splitlines()] == list(RULES)


@pytest.mark.alone
def test_lines_per_second() -> None:
    """50,000 lines a second are promised for a tree; one core alone, parsing every file, must not be far below."""
    source = "".join(rule.bad + "\n" + rule.good + "\n" for rule in RULES.values())
    lines = source.count("\n")
    gc.disable()
    try:
        rates = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(5):
                lint_source(source, codes=list(RULES))
            rates.append(5 * lines / (time.perf_counter() - began))
    finally:
        gc.enable()
    assert max(rates) > 2_000, f"{max(rates):,.0f} lines a second"
