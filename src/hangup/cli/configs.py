"""`hangup config`: checks a configuration, shows every setting with its origin, prints an example and a schema for editors."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hangup.cli import startup_check
from hangup.cli.settings import add_flags, configuration, unknown_engines
from hangup.config import LimitSettings, Settings
from hangup.config.check import SHARED_STATE
from hangup.config.json_schema import json_schema
from hangup.config.load import Configuration, load
from hangup.config.schema import LISTS, scalar_fields
from hangup.config.toml_text import example
from hangup.errors import ConfigError
from hangup.gateway.backends.adapters import ADAPTERS, AUTO
from hangup.gateway.store.postgresql import is_postgresql, without_password


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("config")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="check a file and list every problem with its line and column",
        description="Lists everything that `hangup serve --config FILE` would refuse or could not use, on this machine and in"
        " this environment. Starts nothing and contacts nobody.",
    )
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument(
        "--file-only",
        action="store_true",
        help="ignore environment variables, other files, programs and packages: they are on another machine",
    )
    check.set_defaults(run=run_check)
    show = actions.add_parser(
        "show",
        help="show every setting in effect and its origin",
        epilog="example:\n  hangup config show --config hangup.toml --gap-s 20",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    show.add_argument("--json", action="store_true", help="as JSON")
    add_flags(show)
    show.set_defaults(run=run_show)
    whole = actions.add_parser("example", help="print a file with every setting, its meaning and its default")
    whole.set_defaults(run=run_example)
    schema = actions.add_parser("schema", help="print a JSON schema of the file, for editors")
    schema.set_defaults(run=run_schema)


def run_example(arguments: argparse.Namespace) -> int:
    print(example(), end="")
    return 0


def run_schema(arguments: argparse.Namespace) -> int:
    print(schema_text(), end="")
    return 0


def schema_text() -> str:
    return json.dumps(json_schema([AUTO, *ADAPTERS]), indent=2) + "\n"


def run_check(arguments: argparse.Namespace) -> int:
    """List every problem at once. What depends on this machine can be told only of a file that is right in itself."""
    config = load(arguments.file, None if arguments.file_only else os.environ)
    problems = unknown_engines(config) if arguments.file_only else startup_check.problems(config)
    for warning in (*config.warnings, *([] if arguments.file_only else startup_check.warnings(config))):
        print(f"hangup: warning: {warning}", file=sys.stderr)
    if problems:
        raise ConfigError(problems)
    count = len(config.settings.backend)
    print(f"{arguments.file}: ok ({count} backend{'' if count == 1 else 's'})")
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    config = configuration(arguments)
    rows = effective(config)
    if arguments.json:
        tables = {name: [_row(row) for row in getattr(config.settings, name)] for name in LISTS}
        settings = {name: {"value": value, "origin": origin} for name, value, origin in rows}
        print(json.dumps({"settings": settings, **tables}, indent=2))
        return 0
    width = max(len(name) for name, _, _ in rows)
    for name, value, origin in rows:
        print(f"{name:<{width}}  {json.dumps(value):<22}  {origin}")
    for name in LISTS:
        for row in getattr(config.settings, name):
            given = {k: v for k, v in _row(row).items() if v not in ("", (), [], {})}
            print(f"[[{name}]]  {json.dumps(given)}  {config.origins.get(name, config.path or '')}")
    return 0


def _row(row: Any) -> dict[str, Any]:
    """Return the settings of a table, without the secrets that were read for it."""
    return {field.name: getattr(row, field.name) for field in scalar_fields(type(row))}


def effective(config: Configuration) -> list[tuple[str, Any, str]]:
    """Return every plain setting as (name, value, origin), without passwords."""
    settings = config.settings
    rows = [(f.name, _shown(f.name, getattr(settings, f.name)), config.origin(f.name)) for f in scalar_fields(Settings)]
    limits = config.settings.limits
    return rows + [(f"limits.{f.name}", getattr(limits, f.name), config.origin(f.name)) for f in scalar_fields(LimitSettings)]


def _shown(name: str, value: Any) -> Any:
    if name == "alarm_webhook" and value:  # the path is the key of most
        parts = urlsplit(value)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/***"
    has_password = isinstance(value, str) and (name == "otlp_endpoint" or is_postgresql(value) or SHARED_STATE.match(value))
    return without_password(str(value)) if has_password else value
