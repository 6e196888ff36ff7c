"""`hangup lint` as a command: formats, exit codes, settings, exclusions, ignores, baseline, fixes, standard input."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from hangup.cli.main import main
from hangup.lint import RULES, lint_source

BAD = RULES["HU005"].bad
CALL = 'return client.chat.completions.create(model="m", messages=messages, max_tokens=500)'
LINE = BAD.splitlines().index("    " + CALL) + 1


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(BAD)
    (tmp_path / "fine.py").write_text(RULES["HU005"].good)
    for folder in (".venv", "tests", "examples"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "other.py").write_text(BAD)
    (tmp_path / "test_app.py").write_text(BAD)
    return tmp_path


def lint(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["lint", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("folder", ["backups/chat-old", "voice/speech", "legacy"])
def test_where_a_project_lies_says_nothing_about_its_files(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In such folders of a project are old copies, or files about sound."""
    project = tmp_path / folder
    (project / "backups").mkdir(parents=True)
    (project / "app.py").write_text(BAD)
    (project / "also.py").write_text(RULES["HU004"].bad)
    (project / "backups" / "app.py").write_text(BAD)
    out = lint(capsys, project)[1]
    assert [line.split(" ")[1] for line in out.splitlines() if ": HU" in line] == ["HU004", "HU005"]


def test_exit_codes_are_those_of_ruff(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(capsys, project)[0] == 1
    assert lint(capsys, project, "--exit-zero")[0] == 0
    assert lint(capsys, project / "fine.py")[0] == 0
    assert lint(capsys, project / "missing.py")[0] == 2
    assert lint(capsys, project, "--select", "HU999")[0] == 2


def test_text_has_place_rule_and_hint(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = lint(capsys, project)
    first, hint = out.splitlines()
    assert first.startswith(f"{project}/app.py:{LINE}:12: HU005 ") and first.endswith("[blocking-inference]")
    assert hint.startswith("  hint: ")
    assert err == "hangup: 1 finding in 2 files\n"


def test_the_problem_matcher_of_the_docs_reads_the_text(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "lint.md").read_text()
    pattern = json.loads(re.search(r'"regexp": (".*")', docs)[1])  # type: ignore[index]
    match = re.match(pattern, lint(capsys, project)[1].splitlines()[0])
    assert match is not None
    assert match.groups()[:4] == (f"{project}/app.py", str(LINE), "12", "HU005")


def test_json_sarif_and_github(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = json.loads(lint(capsys, project, "--format", "json")[1])
    assert (row["code"], row["line"], row["severity"]) == ("HU005", LINE, "error")
    monkeypatch.chdir(project)
    sarif = json.loads(lint(capsys, project, "--format", "sarif")[1])
    assert sarif["version"] == "2.1.0"
    run = sarif["runs"][0]
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert list(rules) == [*RULES, "HU000", "HU100"]
    assert rules["HU005"]["helpUri"].endswith("docs/lint.md#hu005-blocking-inference")
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["region"]["startLine"] == LINE
    assert place["artifactLocation"] == {"uri": "app.py", "uriBaseId": "%SRCROOT%"}, (
        "code scanning needs the path from the root"
    )
    assert result["partialFingerprints"]
    (line,) = lint(capsys, project, "--format", "github")[1].splitlines()
    assert line.startswith("::error file=") and "title=HU005 blocking-inference::" in line


def test_sarif_names_files_by_references_that_are_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "app copy #2.py").write_text(BAD)
    monkeypatch.chdir(inside)
    run = json.loads(lint(capsys, inside, str(outside), "--format", "sarif")[1])["runs"][0]
    files = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in run["results"]]
    assert {"uri": "app%20copy%20%232.py", "uriBaseId": "%SRCROOT%"} in files
    assert {"uri": (outside / "app copy #2.py").as_uri()} in files, "an absolute reference has no base"


def marked(comment: str, codes: list[str] | None = None) -> list[str]:
    found = lint_source(BAD.replace(CALL, f"{CALL}  {comment}"), codes=codes or [*RULES, "HU100"])
    return [f.code for f in found]


@pytest.mark.parametrize("what", ["", "[HU005]", "[hu005]", "[blocking-inference]", "[HU003, HU005]", " [HU005]"])
def test_findings_are_ignored_by_comment(what: str) -> None:
    assert "HU005" not in marked(f"# hangup: ignore{what}")


@pytest.mark.parametrize("what", ["[HU003]", "[no-max-tokens]", "[hu003]", "[nonsense]", "[]"])
def test_a_comment_acts_on_the_rules_that_it_names_alone(what: str) -> None:
    assert "HU005" in marked(f"# hangup: ignore{what}")


def test_a_comment_for_the_whole_file() -> None:
    assert lint_source(f"# hangup: ignore-file[HU005]\n{BAD}") == []
    assert lint_source(f"{BAD}\n# hangup: ignore-file\n") == []


def test_strings_are_no_comments() -> None:
    for text in ('"""Write `# hangup: ignore-file` to switch it off."""\n', 'x = "# hangup: ignore-file[HU005]"\n'):
        assert [f.code for f in lint_source(text + BAD)] == ["HU005"]


def test_unused_ignores_are_reported() -> None:
    assert marked("# hangup: ignore[HU005]") == []
    assert sorted(marked("# hangup: ignore[HU003]")) == ["HU005", "HU100"]
    assert marked("# hangup: ignore[HU003]", ["HU005", "HU100"]) == ["HU005"], "HU003 did not run"
    assert [f.code for f in lint_source("x = 1  # hangup: ignore\n")] == ["HU100"]
    assert [f.message for f in lint_source("x = 1  # hangup: ignore[huge]\n")] == ["`huge` is no rule"]


def test_settings_come_from_pyproject(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = project / "pyproject.toml"
    settings.write_text('[tool.hangup.lint]\nignore = ["HU005"]\n')
    assert lint(capsys, project)[0] == 0
    assert lint(capsys, project, "--ignore", "HU003")[0] == 1, "the flag replaces the setting"
    settings.write_text('[tool.hangup.lint]\nexclude = ["app.py"]\n')
    assert lint(capsys, project)[0] == 0
    settings.write_text('[tool.hangup.lint.per-file-ignores]\n"app.py" = ["blocking-inference"]\n')
    assert lint(capsys, project)[0] == 0
    settings.write_text('[tool.hangup.lint]\nselect = ["HU01"]\nextend-select = ["hu005"]\n')
    assert lint(capsys, project)[0] == 1
    settings.write_text("[tool.hangup.lint]\ninclude-tests = true\n")
    assert lint(capsys, project)[1].count("HU005") == 4


def test_excluded_files_stay_out_even_if_they_are_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """pre-commit names them."""
    assert lint(capsys, project / "app.py", "--exclude", "app.py,legacy")[2] == "hangup: no findings in 0 files\n"
    (project / "pyproject.toml").write_text('[tool.hangup.lint]\nexclude = ["app.py"]\n')
    assert lint(capsys, project / "app.py")[0] == 0
    assert lint(capsys, project / "app.py", "--exclude", "nothing")[0] == 1


def test_tests_and_examples_are_left_out_unless_asked_for(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(capsys, project)[1].count("HU005") == 1
    assert lint(capsys, project, "--include-tests")[1].count("HU005") == 4
    assert lint(capsys, project / "tests" / "other.py")[0] == 1, "a named file was asked for"


@pytest.mark.parametrize(
    ("folder", "packages", "found"),
    [
        ("app/notebooks", ("app", "app/notebooks"), 1),
        ("app/notebooks", ("app",), 0),
        ("app/notebooks", ("app/notebooks",), 0),
        ("app/tests", ("app", "app/tests"), 0),
        ("app/examples", ("app", "app/examples"), 0),
    ],
)
def test_a_package_of_an_application_may_be_about_notebooks(
    tmp_path: Path, folder: str, packages: tuple[str, ...], found: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    for package in packages:
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / folder / "routes.py").write_text(BAD)
    assert lint(capsys, tmp_path)[1].count("HU005") == found


def test_bad_settings_are_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text('[tool.hangup.lint]\nselect = "HU003"\nselct = []\ninclude-tests = 3\n')
    code, _, err = lint(capsys, project)
    assert code == 2
    assert "unknown setting 'selct'" in err and "select must be a list of strings" in err and "include-tests must be" in err
    (project / "pyproject.toml").write_text('[tool.hangup.lint]\ntarget-version = "2.7"\n')
    assert "target-version must be like py312" in lint(capsys, project)[2]


def test_retired_rules_say_what_replaces_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = lint(capsys, tmp_path, "--select", "HU006")
    assert code == 2 and "retired" in err and "S113" in err


def test_a_file_that_cannot_be_parsed_is_a_finding(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = project / "broken.py"
    broken.write_text("async def f(:\n    return await llm.ainvoke(1)\n")
    code, out, _ = lint(capsys, broken)
    assert code == 1 and "HU000 cannot parse" in out
    assert lint(capsys, broken, "--ignore", "HU000")[0] == 0
    assert lint(capsys, broken, "--ignore", "syntax-error")[0] == 0


def test_syntax_that_is_newer_than_the_running_python(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = project / "new.py"
    broken.write_text("frob x: await llm.ainvoke(1)\n")
    newer = f"py3{sys.version_info[1] + 1}"
    code, _, err = lint(capsys, broken, "--target-version", newer)
    assert code == 0 and "1 file not checked: newer syntax" in err
    old = project / "old.py"
    old.write_text("async def f(llm):\n    match await llm.ainvoke(1):\n        case 1: pass\n")
    assert lint(capsys, old)[0] == 0
    assert "HU000" in lint(capsys, old, "--target-version", "py39")[1]


def test_the_standard_input(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def give(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    give(BAD)
    code, out, _ = lint(capsys, "-", "--stdin-filename", project / "new.py")
    assert code == 1 and out.startswith(f"{project}/new.py:{LINE}:")
    give("x = 1\n")
    assert lint(capsys, "-", "--stdin-filename", project / "app.py")[0] == 0, "what is in the file does not count"
    give(BAD)
    assert lint(capsys, "-", "--stdin-filename", project / "new.py", "--exclude", "new.py")[0] == 0


def test_a_baseline_knows_findings_though_their_lines_move(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = project / "known.json"
    assert lint(capsys, project, "--baseline", known)[0] == 2
    assert lint(capsys, project, "--write-baseline", known)[::2] == (0, f"hangup: 1 finding written to {known}\n")
    (project / "app.py").write_text("import os\n\n" + BAD)
    assert lint(capsys, project, "--baseline", known)[0] == 0
    twice = BAD + "\n" + "\n".join(BAD.splitlines()[6:]).replace("def chat", "def second").replace("/chat", "/second")
    (project / "app.py").write_text(twice)
    assert lint(capsys, project, "--baseline", known)[1].count("HU005") == 1, "a second one is new"
    (project / "pyproject.toml").write_text('[tool.hangup.lint]\nbaseline = "known.json"\n')
    (project / "app.py").write_text(BAD)
    assert lint(capsys, project)[0] == 0
    known.write_text("[]")
    assert lint(capsys, project)[0] == 2


def test_fixes_are_safe_and_complete(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / "app.py"
    path.write_text(RULES["HU009"].bad + "x = 1  # hangup: ignore[HU011]\ny = 2  # hangup: ignore[HU011, HU005]  why\n")
    code, _, err = lint(capsys, path, "--fix", "--extend-select", "HU009")
    assert (code, err) == (0, "hangup: no findings in 1 file, 4 fixed\n")
    assert path.read_text() == RULES["HU009"].good + "x = 1\ny = 2  # why\n"
    kept = BAD.replace(CALL, f"{CALL}  # hangup: ignore[HU011, HU005]")
    path.write_text(kept)
    assert lint(capsys, path, "--fix")[0] == 0
    assert path.read_text() == kept.replace("[HU011, HU005]", "[HU005]")


def test_many_files_are_spread_over_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(70):
        (tmp_path / f"app{number:02}.py").write_text(BAD)
    code, out, _ = lint(capsys, tmp_path, "--format", "github")
    assert code == 1 and len(out.splitlines()) == 70


def test_every_rule_is_listed_explained_and_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = lint(capsys, "--list")[1]
    assert [line[:5] for line in out.splitlines()] == list(RULES)
    out = lint(capsys, "--explain", "nobody-watches-client")[1]
    assert out.startswith("HU004 nobody-watches-client\n") and RULES["HU004"].bad in out and RULES["HU004"].good in out
    assert lint(capsys, project, "--statistics")[1] == "    1  HU005 blocking-inference\n"


@pytest.mark.parametrize("pattern", ["app", "app/*", "app/main.py", "main.py"])
def test_patterns_hold_without_a_project_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pattern: str
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.py").write_text("x = 1  # hangup: ignore[HU004]\n")
    monkeypatch.chdir(tmp_path)
    assert main(["lint", "app/main.py"]) == 1
    assert main(["lint", "--exclude", pattern, "app/main.py"]) == 0
    assert "0 files" in capsys.readouterr().err
