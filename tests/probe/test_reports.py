"""Reports in every format, the matrix file, the assertions and the pytest plugin."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hangup.cli.main import main
from hangup.cli.probe_parts.outputs import _write, result_lines, text_report
from hangup.cli.probe_parts.screen import ProbeScreen
from hangup.errors import ConfigError
from hangup.probe import CASES, CaseResult, Judgement, ProbeReport, Ruling, sentence
from hangup.probe.checks import assert_stops
from hangup.probe.matrix import read_matrix
from hangup.probe.pytest_plugin import Prober
from hangup.probe.render.badge import badge
from hangup.probe.render.junit import junit
from hangup.probe.render.markdown import brief, markdown
from hangup.probe.render.page import page
from hangup.probe.report import Traffic
from hangup.probe.verdict import VAGUE
from support.processes import StandIn

ODD = 'a | "b" <script>alert(1)</script> [x](y)\n'
STOPPED = Judgement(Ruling.STOPPED, "figures", 1, 0, 0.25, 10, tokens_counted=True)
NEVER = Judgement(Ruling.NEVER, "echo", 3, 3, None, 600, confidence=0.99)
UNTOLD = Judgement(Ruling.UNTOLD, "no evidence")
BROKE = STOPPED.broke("a new call is not answered any more")


def report(*judgements: Judgement, **fields: object) -> ProbeReport:
    results = tuple(CaseResult(case, judgement) for case, judgement in zip(CASES.values(), judgements, strict=False))
    made = ProbeReport(
        "http://h:1",
        "openai",
        "m",
        "v1",
        "2026-11-16",
        "hangup probe h",
        "0.1.0",
        "figures",
        200,
        50.0,
        0.1,
        4,
        9,
        99,
        6.0,
        results,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def test_the_sentence() -> None:
    assert sentence(report(STOPPED, STOPPED)).startswith("http://h:1 stops in all 2 cases that could be told, within 0.25 s.")
    said = sentence(report(STOPPED, NEVER, UNTOLD), Traffic(1000, 2.0))
    assert (
        "stops in 1 of 2 cases; 1 × never stopped; 1 cannot be told. A client that leaves costs 105 tokens on average" in said
    )
    assert "At 1,000 departures a day that is 105,000 tokens for nobody, 0.21 a day at 2 per million." in said
    assert sentence(report(UNTOLD)).startswith("Nothing can be said")
    assert "1 × broke" in sentence(report(STOPPED, BROKE))
    assert "all 1 cases that could be told, within 0.25 s; 2 cannot be told." in sentence(report(STOPPED, UNTOLD, UNTOLD))


@pytest.mark.parametrize("width", [80, 60, 0])
def test_the_table_is_as_wide_as_the_terminal(width: int) -> None:
    wordy = BROKE.with_note("another client's stream was cut: the connection was closed before the answer's end")
    lines = result_lines(report(STOPPED, NEVER, UNTOLD, wordy, STOPPED).results, width)
    assert not width or all(len(line) <= width for line in lines), lines
    assert " ".join(" ".join(lines).split()).count("closed before the answer's end") == 1, "nothing is cut off"
    assert any("never stopped, ~600 tokens of 3 clients" in line for line in lines)
    assert width or len(lines) == 6


def test_the_table_says_what_its_figures_belong_to() -> None:
    text = text_report(report(STOPPED), None)
    assert all(
        fact in text for fact in ("v1", "model m", "2026-11-16", "hangup 0.1.0", "`hangup probe h`", "evidence: figures")
    )
    properties = {row.attrib["name"]: row.attrib["value"] for row in ElementTree.fromstring(junit([report(STOPPED)]))[0][0]}
    assert properties["command"] == "hangup probe h" and properties["version"] == "v1" and properties["date"] == "2026-11-16"


def test_a_stop_that_may_be_late_has_its_tick_in_brackets() -> None:
    vague = replace(STOPPED, stopped_s=1.37).with_note(f"{VAGUE} 1 s")
    assert brief(vague) == "(✓) 1.37 s" and brief(STOPPED) == "✓ 0.25 s"
    assert brief(NEVER) == "✗ 200 tokens", "of one client: 3 left"


def test_names_from_outside_cannot_break_a_report() -> None:
    odd = report(STOPPED, NEVER, UNTOLD, BROKE, name=ODD, model=ODD, version=ODD, notes=(ODD,), command=ODD)
    html = page([odd, report(STOPPED)], Traffic(10, 1))
    assert "<script>" not in html and "http" not in re.sub(r"http://h:1", "", html), "it needs nothing else"
    assert html.count("<svg") == 2 and "never stopped" in html
    text = markdown([odd, odd])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert "<script>" not in text and len({line.replace("\\|", "").count("|") for line in rows}) <= 2
    suite = ElementTree.fromstring(junit([odd]))[0]
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("4", "2", "1")
    for made in (odd, report(STOPPED), report(UNTOLD), report(NEVER)):
        ElementTree.fromstring(badge(made))
    assert "1 of 1" in badge(report(STOPPED)) and "cannot be told" in badge(report(UNTOLD)) and "broke" in badge(odd)
    assert json.loads(json.dumps(odd.as_json()))["results"][1]["ruling"] == "never stopped"


def test_the_assertion() -> None:
    assert_stops(report(STOPPED, STOPPED))
    assert_stops(report(STOPPED, UNTOLD), untold=True)
    for bad in (report(STOPPED, NEVER), report(STOPPED, UNTOLD), report(STOPPED, BROKE), report(UNTOLD)):
        with pytest.raises(AssertionError):
            assert_stops(bad)
    with pytest.raises(AssertionError, match=r"upload-fin: stopped within 0\.25 s"):
        assert_stops(report(STOPPED), within_s=0.1)
    free = replace(STOPPED, stopped_s=2.0, tokens=0)
    assert_stops(report(free))
    prefill = replace(report(free), results=(CaseResult(CASES["prefill-fin"], free),))
    with pytest.raises(AssertionError, match=r"prefill-fin: stopped within 2\.00 s"):
        assert_stops(prefill)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("endpoint = 1", "expected one or more"),
        ("[[endpoint]]\nurl = 1", "url: must be of type str"),
        ("[[endpoint]]\nname = 'a'", "url is missing"),
        ("[[endpoint]]\nurl = 'a'\nport = 1", "unknown setting 'port'"),
        ("[[endpoint", "Expected"),
    ],
)
def test_a_bad_matrix_gets_clear_lines(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "m.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_matrix(path)


def test_a_matrix_of_endpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StandIn(token_s=0.005, slots=3) as one, StandIn(token_s=0.005, slots=3, deaf=True) as two:
        path = tmp_path / "m.toml"
        path.write_text(
            f'[[endpoint]]\nname = "good"\nurl = "{one.url}"\nslots = 3\n'
            f'[[endpoint]]\nname = "deaf"\nurl = "{two.url}"\nslots = 3\n[[endpoint]]\nurl = "http://127.0.0.1:1"\n'
        )
        flags = ["--matrix", str(path), "--cases", "stream-fin", "--rest", "1.2", "--within", "0.6", "--quiet"]
        outputs = [f"--{kind}={tmp_path / kind}" for kind in ("html", "markdown", "junit", "json")]
        assert main(["probe", *flags, *outputs]) == 2, "one cannot be probed"
    said = capsys.readouterr()
    assert "nothing listens on 127.0.0.1:1" in said.err and "deaf stops in 0 of 1 cases" in said.out
    assert ["CASE", "good", "deaf"] in [line.split() for line in said.out.splitlines()], "side by side"
    assert [row["name"] for row in json.loads((tmp_path / "json").read_text())] == ["good", "deaf"]
    assert "| good | deaf |" in (tmp_path / "markdown").read_text() and "<svg" in (tmp_path / "html").read_text()


def test_files_that_cannot_be_written_are_found_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "http://127.0.0.1:1", "--html", f"{tmp_path}/no/x.html", "--json", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "--html" in said and "there is no folder" in said and "this is a folder" in said and "nothing listens" not in said


def test_the_plugin() -> None:
    prober = Prober()
    with StandIn(token_s=0.005, slots=3, deaf=True) as engine, pytest.raises(AssertionError, match="stream-fin: never stopped"):
        prober.assert_stops(engine.url, 0.6, cases="stream-fin", slots=3, rest_s=1.2)
    assert len(prober.reports) == 1


def test_progress_escapes_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    ProbeScreen(quiet=False).progress("model \x1b]0;owned\x07\x1b[2J", None, None)
    assert capsys.readouterr().err == "hangup: model \\x1b]0;owned\\x07\\x1b[2J\n"


def test_half_a_character_from_a_server_does_not_cost_the_report(tmp_path: Path) -> None:
    _write(str(tmp_path / "report"), "✓ \ud800")
    assert (tmp_path / "report").read_text(encoding="utf-8") == "✓ \\ud800"
