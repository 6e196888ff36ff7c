"""The documentation matches the code: every setting, outcome, route, command and metric."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import docs, grafana

from hangup.cli.main import COMMANDS, make_parser
from hangup.core import reasons
from hangup.gateway.workers.admin import METRICS
from support.processes import Gateway
from support.raw import ask

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "hangup"


@pytest.mark.parametrize("name", docs.PARTS)
def test_generated_parts_are_up_to_date(name: str) -> None:
    page, make = docs.PARTS[name]
    text = (docs.DOCS / page).read_text()
    assert docs.render(text, name, make()) == text, "run `make docs`"


@pytest.mark.parametrize("name", docs.FILES)
def test_generated_files_are_up_to_date(name: str) -> None:
    assert (docs.DOCS / name).read_text() == docs.FILES[name](), "run `make docs`"


def test_every_metric_is_documented_and_no_other(gateway: Gateway) -> None:
    ask(gateway.address, "/v1/chat/completions", {"messages": []})
    endings = r"_(bucket|count|sum)$"
    shown = {re.sub(endings, "", name.partition("{")[0]) for name in gateway.metrics()}
    of_workers = set(re.findall(r"^# TYPE (\w+)", METRICS, re.M))  # shown only where there are several
    page = (docs.DOCS / "metrics.md").read_text()
    named = "".join(re.findall(r"^\| (`\w+_.*?) \|", page, re.M))  # the first column
    assert set(re.findall(r"`((?:hangup|gen_ai|process)_\w+)`", named)) == shown | of_workers


def test_every_field_of_the_log_is_documented(gateway: Gateway) -> None:
    ask(gateway.address, "/v1/chat/completions", {"messages": []}, {"X-Request-Id": "documented"})
    page = (docs.DOCS / "outcomes.md").read_text()
    for name in gateway.call_log("documented"):
        assert f"`{name}`" in page or name == "event", name


def test_example_configuration_is_valid(tmp_path: Path) -> None:
    from hangup.config.load import load

    text = (docs.DOCS / "configuration.md").read_text()
    example, *others = re.findall(r"```toml\n(.*?)```", text, re.S)
    path = tmp_path / "hangup.toml"
    path.write_text(example.replace("…64 hex digits from `hangup key new`…", "0" * 64))
    assert len(load(path).settings.backend) == 2
    for other in others:
        path.write_text(other)
        assert load(path).settings.backend


def test_alerts_and_dashboards_speak_of_metrics_that_exist() -> None:
    known = set(re.findall(r"^\| `(hangup_\w+)`", (docs.DOCS / "metrics.md").read_text(), re.M))
    for path in (ROOT / "deploy/prometheus/rules.yml", ROOT / "deploy/grafana/hangup.json"):
        used = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"hangup_[a-z_]+", path.read_text())}
        assert used - known == set() and used


def test_the_grafana_dashboard_is_up_to_date() -> None:
    assert json.loads(grafana.TARGET.read_text()) == grafana.dashboard(), "run `make docs`"


def test_a_share_of_failures_is_0_while_nothing_fails() -> None:
    """A series that never occurred makes a quotient without a value, and Grafana says 'No data' where all is well."""
    panels = [panel for panel in grafana.dashboard()["panels"] if panel["title"] in ("Not served", "By model and backend")]
    shares = [target["expr"] for panel in panels for target in panel["targets"] if "engine_failed" in target["expr"]]
    assert len(shares) == 2 and all(re.fullmatch(r"\((sum.*) or 0 \* (sum.*)\) / \(\2 > 0\)", share) for share in shares)


def test_every_alert_is_seen_raised() -> None:
    """Check that each alert has a test, which needs no tool; `promtool` runs those tests."""
    alerts = set(re.findall(r"- alert: (\w+)", (ROOT / "deploy/prometheus/rules.yml").read_text()))
    raised = set(re.findall(r"alertname: (\w+)\n +exp_alerts", (ROOT / "deploy/prometheus/rules_test.yml").read_text()))
    assert alerts == raised
    silent = set(re.findall(r"\{eval_time: \w+, alertname: (\w+)\}", (ROOT / "deploy/prometheus/rules_test.yml").read_text()))
    assert alerts == silent


def test_every_alert_leads_to_its_runbook() -> None:
    rules = (ROOT / "deploy/prometheus/rules.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert re.findall(r"/docs/runbooks\.md#(\w+)", rules) == [alert.lower() for alert in alerts]
    assert sorted(re.findall(r"^### (\w+)$", (docs.DOCS / "runbooks.md").read_text(), re.M)) == sorted(alerts)


@pytest.mark.skipif(
    shutil.which("promtool") is None and "PROMETHEUS_TESTS" not in os.environ, reason="promtool is not installed"
)
def test_the_alerts_are_valid_and_raised_when_they_should_be() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", ROOT / "deploy/prometheus/rules.yml"], capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(
        ["promtool", "test", "rules", ROOT / "deploy/prometheus/rules_test.yml"], capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_is_found_in_its_module() -> None:
    """hangup loads only the module of the requested command, so the list of modules must be correct."""
    actions = make_parser()._subparsers
    assert actions is not None
    (commands,) = [action for action in actions._group_actions if action.choices]
    assert set(commands.choices or ()) == set(COMMANDS)
    for command in COMMANDS:
        make_parser(command)


def test_every_event_of_the_log_is_documented_and_no_other() -> None:
    """Operators look up log events by name. An event is the constant first argument of the calls named below."""
    logged: set[str] = {"call_ended"}
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in ("gateway", "tasks.py"):
            logged |= _events_in(ast.parse(path.read_text()))
    text = (docs.DOCS / "outcomes.md").read_text().partition("| event | fields | meaning |")[2]
    documented = {"call_ended"}
    for row in text.splitlines()[2:]:
        documented |= set(re.findall(r"`(\w+)`", row.split("|")[1])) if row.startswith("|") else set()
    assert logged - documented == set(), "not in docs/outcomes.md"
    assert documented - logged == set(), "told by nobody"


def test_every_field_of_an_event_is_documented() -> None:
    logged: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in ("gateway", "tasks.py"):
            for event, fields in _logged_in(ast.parse(path.read_text())):
                logged.setdefault(event, set()).update(fields)
    text = (docs.DOCS / "outcomes.md").read_text().partition("| event | fields | meaning |")[2]
    for cells in (row.split("|") for row in text.splitlines()[2:] if row.startswith("|")):
        events, documented = re.findall(r"`(\w+)`", cells[1]), set(re.findall(r"`(\w+)`", cells[2]))
        said = set[str]().union(*(logged.get(event, set()) for event in events))
        assert said - documented == set(), f"fields of {events} that are not in docs/outcomes.md"


def _events_in(tree: ast.AST) -> set[str]:
    return {event for event, _ in _logged_in(tree)}


def _logged_in(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Yield events and their fields. An event whose name is computed would be missed, so there must be none."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        first, name = node.args[0], node.func.attr
        if (
            isinstance(first, ast.Constant)
            and isinstance(first.value, str)
            and name in ("event", "log_event", "_log_event", "told", "_told", "_tell")
        ):
            yield first.value, {word.arg for word in node.keywords if word.arg is not None}
        elif name == "event":
            assert isinstance(first, ast.Name) and first.id == "event", f"line {node.lineno}: {ast.unparse(node)}"


def test_every_reason_is_given_by_somebody() -> None:
    """A reason that no code uses would promise something that never happens."""
    text = "".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "reasons.py")
    names = [name for name, value in vars(reasons).items() if isinstance(value, reasons.Reason)]
    assert [name for name in names if not re.search(rf"\breasons\.{name}\b", text)] == []
    assert {getattr(reasons, name).code for name in names} == set(reasons.REASONS)
