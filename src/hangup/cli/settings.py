"""Flags for every setting, made from the schema, and the configuration that they lead to."""

from __future__ import annotations

import argparse
import os
from dataclasses import Field
from pathlib import Path
from typing import Any

from hangup.config import Limits, Settings
from hangup.config.load import Configuration, describe, load
from hangup.config.schema import scalar_fields
from hangup.engines.adapters import ADAPTERS, AUTO
from hangup.errors import ConfigError

_SHORT = {"queue_depth_max": ["queue_depth"]}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--upstream",
        action="append",
        metavar="URL",
        help="address of an engine; give it several times for several backends (replaces those of the file)",
    )
    parser.add_argument("--engine", choices=[AUTO, *ADAPTERS], help="which engine the upstreams are (default: auto)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file (TOML), such as hangup.toml")
    for field in scalar_fields(Settings):
        _add_flag(parser, field)
    group = parser.add_argument_group("limits", "each has its line in docs/configuration.md")
    for field in scalar_fields(Limits):
        _add_flag(group, field)


def _add_flag(parser: argparse._ActionsContainer, field: Field[Any]) -> None:
    shown = "on" if field.default is True else "off" if field.default is False else field.default
    parser.add_argument(
        *("--" + name.replace("_", "-") for name in (field.name, *_SHORT.get(field.name, ()))),
        dest="setting_" + field.name,
        metavar="VALUE" if field.metadata["choices"] == () else "|".join(field.metadata["choices"]),
        help=f"{field.metadata['doc']} ({describe(field)}; default: {shown if shown != '' else 'none'})".replace("%", "%%"),
    )


def configuration(arguments: argparse.Namespace) -> Configuration:
    """What the file, the environment and the flags say together."""
    prefix = "setting_"
    flags = {k.removeprefix(prefix): v for k, v in vars(arguments).items() if k.startswith(prefix) and v is not None}
    made = load(arguments.config, os.environ, flags, arguments.upstream, arguments.engine)
    unknown = [b.engine for b in made.settings.backend if b.engine not in ADAPTERS and b.engine != AUTO]
    if unknown:
        names = ", ".join([AUTO, *ADAPTERS])
        raise ConfigError([f"backend: there is no engine named {unknown[0]!r}\n  hint: valid names: {names}"])
    return made
