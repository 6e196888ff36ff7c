"""Writes the generated parts and files of docs/ from the code: settings, outcomes, routes, the command line.

A generated part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; the rest of a page is written by hand. `make
docs` regenerates them, and a test fails when they are out of date.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Any

from hangup.cli import engines
from hangup.cli.configs import schema_text
from hangup.cli.main import make_parser
from hangup.config.limits import LimitSettings
from hangup.config.load import describe
from hangup.config.schema import LISTS, Settings, scalar_fields
from hangup.config.toml_text import example
from hangup.core.reasons import REASONS, Outcome
from hangup.engine.serving import metrics as engine_metrics
from hangup.gateway.apis.base import Api
from hangup.gateway.apis.engine_paths import HEALTH, REFUSED
from hangup.gateway.apis.routes import BUILT_IN
from hangup.gateway.backends.adapters import ADAPTERS
from hangup.lint import RULES, Rule
from tools.markdown import formatted

DOCS = Path(__file__).resolve().parent.parent / "docs"


def settings_table() -> str:
    return _table(["setting", "default", "type", "meaning"], [_row(f) for f in scalar_fields(Settings)])


def limits_table() -> str:
    rows = [[*_row(f), "yes" if f.metadata["per_call"] else ""] for f in scalar_fields(LimitSettings)]
    return _table(["limit", "default", "type", "meaning", "per call"], rows)


def lists_tables() -> str:
    parts = []
    for name, cls in LISTS.items():
        parts.append(f"### `[[{name}]]`\n\n{(cls.__doc__ or '').strip()}\n")
        parts.append(_table(["setting", "default", "type", "meaning"], [_row(f) for f in scalar_fields(cls)]))
    return "\n".join(parts)


def outcomes_table() -> str:
    rows = []
    for outcome in Outcome:
        for reason in REASONS.values():
            if reason.outcome is outcome:
                retry = {True: "true", False: "false", None: ""}[reason.retry]
                rows.append([f"`{outcome.value}`", f"`{reason.code}`", str(reason.status), retry, reason.message])
    return _table(["outcome", "cause", "status", "x-should-retry", "meaning"], rows)


def routes_table() -> str:
    rows = [[f"`{r.path}`", ", ".join(r.methods), f"`{r.api.name}`", _how(r.api)] for r in BUILT_IN.values()]
    return _table(["path", "methods", "name in logs and metrics", "handling"], rows)


def _how(api: Api) -> str:
    if api is HEALTH or api.about_jobs:
        return "answered by hangup"
    if api.generates:
        return "capped, counted"
    return "question" if api.question else "inference, with files" if api.media else "inference"


def refused_paths() -> str:
    reasons = dict.fromkeys(REFUSED.values())
    return "\n".join(f"- {why}: {', '.join(f'`{p}`' for p in REFUSED if REFUSED[p] == why)}" for why in reasons) + "\n"


def command_line() -> str:
    os.environ["COLUMNS"] = "100"
    parser = make_parser()
    parts = [_help("hangup", parser)]
    for name, command in _commands(parser):
        parts.append(_help(f"hangup {name}", command))
        parts += [_help(f"hangup {name} {inner}", action) for inner, action in _commands(command)]
    return "\n".join(parts)


def lint_rules() -> str:
    rows = [
        [f"[{r.code}](#{r.code.lower()}-{r.name})", r.severity.value, "yes" if r.default else "no", r.summary]
        for r in RULES.values()
    ]
    return (
        _table(["rule", "severity", "on by default", "what it finds"], rows) + "\n" + "\n".join(map(_lint_rule, RULES.values()))
    )


def _lint_rule(rule: Rule) -> str:
    bad, good = (f"```python\n{text}```\n" for text in (rule.bad, rule.good))
    return (
        f"### {rule.code} {rule.name}\n\n{rule.summary} {rule.why}\n\nInstead: {rule.hint}.\n\nBad:\n\n{bad}\nGood:\n\n{good}"
    )


def engines_table() -> str:
    return _table(list(engines.HEAD), [[f"`{row[0]}`", *row[1:]] for row in map(engines.row, ADAPTERS.values())])


def engine_metrics_table() -> str:
    gauges = [[f"`hangup_engine_{name}`", doc] for name, doc in engine_metrics.GAUGES.items()]
    counters = [[f"`hangup_engine_{name}_total`", doc] for name, doc in engine_metrics.COUNTERS.items()]
    return _table(["metric", "meaning"], gauges + counters)


PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "settings": ("configuration.md", settings_table),
    "limits": ("configuration.md", limits_table),
    "lists": ("configuration.md", lists_tables),
    "outcomes": ("outcomes.md", outcomes_table),
    "engines": ("engines.md", engines_table),
    "engine-metrics": ("engine.md", engine_metrics_table),
    "routes": ("apis.md", routes_table),
    "refused": ("apis.md", refused_paths),
    "commands": ("commands.md", command_line),
    "lint-rules": ("lint.md", lint_rules),
}


def render(text: str, name: str, part: str) -> str:
    """Return the page with one generated part replaced."""
    pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
    assert re.search(pattern, text, re.S), f"no markers for the part {name}"
    return formatted(re.sub(pattern, lambda m: f"{m[1]}\n{part.strip()}\n\n{m[2]}", text, count=1, flags=re.S))


_OF_RULES = "# Generated from deploy/prometheus/rules.yml by `make docs`.\n"


def alert_rules() -> str:
    """Return the alerts as a file of the Helm chart, which can read its own files only."""
    rules = (DOCS.parent / "deploy/prometheus/rules.yml").read_text()
    return _OF_RULES + rules[rules.index("groups:") :]


def prometheus_rule() -> str:
    """Return the alerts as an object for the Prometheus operator."""
    lines = alert_rules().removeprefix(_OF_RULES).splitlines(keepends=True)
    body = "".join(f"  {line}" if line.strip() else line for line in lines)
    return f"""\
{_OF_RULES}\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: hangup
  labels: {{app.kubernetes.io/name: hangup}}
spec:
{body}"""


FILES: dict[str, Callable[[], str]] = {
    "hangup.example.toml": example,
    "hangup.schema.json": schema_text,
    "../deploy/helm/hangup/rules.yml": alert_rules,
    "../deploy/kubernetes/components/prometheus-operator/prometheusrule.yaml": prometheus_rule,
}


def main() -> None:
    for name, write in FILES.items():
        (DOCS / name).write_text(write())
    for name, (page, make) in PARTS.items():
        path = DOCS / page
        path.write_text(render(path.read_text(), name, make()))


def _row(field: Field[Any]) -> list[str]:
    default = field.default if not callable(field.default_factory) else field.default_factory()
    shown = f"`{default!r}`".replace("True", "true").replace("False", "false").replace("'", '"')
    return [f"`{field.name}`", shown, describe(field), field.metadata["doc"]]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _commands(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]  # noqa: SLF001
    return [pair for action in actions for pair in action.choices.items()]


class _ShortOptions(argparse.RawDescriptionHelpFormatter):
    """Writes `-o, --option VALUE`, as Python does from 3.13 on, so that the documentation is the same with every version."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def _help(title: str, parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = _ShortOptions
    return f"## {title}\n\n```\n{parser.format_help().rstrip()}\n```\n"


if __name__ == "__main__":
    main()
