"""Builds a flag for every setting from the schema, and the configuration from the flags."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import socket
import sys
from dataclasses import Field
from pathlib import Path
from typing import Any

from hangup.config import BackendSettings, LimitSettings, Settings, secrets
from hangup.config.check import backend_problems
from hangup.config.load import Configuration, describe, load
from hangup.config.schema import scalar_fields
from hangup.errors import ConfigError
from hangup.gateway.backends.adapters import ADAPTERS, AUTO

_SHORT = {"queue_depth_max": ["queue_depth"]}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--upstream",
        action="append",
        metavar="URL",
        help="URL of an engine; repeat it for several backends (replaces the backends of the file)",
    )
    parser.add_argument(
        "--engine", choices=[AUTO, *ADAPTERS], help="kind of engine of the upstreams (default: auto, detect it)"
    )
    parser.add_argument(
        "--spawn",
        metavar="COMMAND",
        help="run the engine as a child process and restart it when it dies or is stuck; {port} is a free port",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file (TOML), such as hangup.toml")
    for field in scalar_fields(Settings):
        _add_flag(parser, field)
    group = parser.add_argument_group("limits", "`hangup docs configuration` has more about them")
    for field in scalar_fields(LimitSettings):
        _add_flag(group, field)


def _add_flag(parser: argparse._ActionsContainer, field: Field[Any]) -> None:
    default = "on" if field.default is True else "off" if field.default is False else field.default
    parser.add_argument(
        *("--" + name.replace("_", "-") for name in (field.name, *_SHORT.get(field.name, ()))),
        dest="setting_" + field.name,
        metavar="VALUE" if field.metadata["choices"] == () else "|".join(field.metadata["choices"]),
        help=f"{field.metadata['doc']} ({describe(field)}; default: {default if default != '' else 'none'})".replace("%", "%%"),
    )


def configuration(arguments: argparse.Namespace) -> Configuration:
    """Return the configuration from the file, the environment and the flags."""
    prefix = "setting_"
    flags = {k.removeprefix(prefix): v for k, v in vars(arguments).items() if k.startswith(prefix) and v is not None}
    config = load(arguments.config, os.environ, flags, arguments.upstream, arguments.engine)
    for warning in config.warnings:
        print(f"hangup: warning: {warning}", file=sys.stderr)
    if getattr(arguments, "spawn", None):
        spawned = _with_spawned(config.settings, arguments)
        hidden = secrets.hidden_variables(spawned, spawned.backend[0], os.environ)
        spawned = dataclasses.replace(spawned, backend=(dataclasses.replace(spawned.backend[0], hidden_variables=hidden),))
        config = dataclasses.replace(config, settings=spawned)
        if problems := backend_problems(config.settings.backend[0]):
            raise ConfigError([f"--{name}: {problem}" for name, problem in problems])
    if unknown := unknown_engines(config):
        raise ConfigError(unknown)
    return config


def unknown_engines(config: Configuration) -> list[str]:
    """Return a problem for each backend whose kind of engine does not exist."""
    names = [AUTO, *ADAPTERS]
    problems = []
    for index, backend in enumerate(config.settings.backend):
        if backend.engine not in names:
            near = difflib.get_close_matches(backend.engine, names, 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else "valid names: " + ", ".join(names)
            place = config.place(("backend", index, "engine"))
            problems.append(f"{place}: unknown engine {backend.engine!r}\n  hint: {hint}")
    return problems


def _with_spawned(settings: Settings, arguments: argparse.Namespace) -> Settings:
    """Add the `--spawn` command to the settings. It runs the single upstream, or a new one on a free port."""
    if not arguments.upstream:
        if not hasattr(arguments, "spawn_port"):  # a reload keeps the engine's port
            arguments.spawn_port = _free_port()
        url = f"http://127.0.0.1:{arguments.spawn_port}"
        backend = BackendSettings(url=url, engine=arguments.engine or AUTO, spawn=arguments.spawn)
        return dataclasses.replace(settings, backend=(backend,))
    if len(settings.backend) != 1:
        raise ConfigError(
            ["--spawn runs one engine, so pass at most one --upstream\n  hint: to run several, set `spawn` in each [[backend]]"]
        )
    return dataclasses.replace(settings, backend=(dataclasses.replace(settings.backend[0], spawn=arguments.spawn),))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
