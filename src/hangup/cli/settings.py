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

from hangup.cli.parser import CliParser, HelpAll
from hangup.config import BackendSettings, LimitSettings, Settings, secrets
from hangup.config.check import backend_problems
from hangup.config.load import Configuration, describe, load
from hangup.config.schema import scalar_fields
from hangup.errors import ConfigError
from hangup.gateway.backends.adapters import ADAPTERS, AUTO

_SHORT = {"queue_depth_max": ["queue_depth"]}


_COMMON = ("host", "port", "workers", "admin_host", "admin_port", "admin_token_env", "tls_cert", "tls_key", "slots", "log")
_COMMON_LIMITS = ("output_tokens_max", "total_s", "first_token_s", "gap_s", "queue_s", "queue_depth_max", "drain_s")


def add_flags(parser: CliParser) -> None:
    """Add a flag for every setting. --help shows those that most people need, --help-all all of them."""
    parser.usage = "%(prog)s [--upstream URL] [--config FILE] [options]"
    parser.add_argument(
        "--upstream",
        action="append",
        metavar="URL",
        help="URL of an engine; repeat it for several backends (replaces the backends of the file)",
    )
    parser.add_argument(
        "--engine",
        choices=[AUTO, *ADAPTERS],
        metavar="KIND",
        help="kind of engine of the upstreams (default: auto, detect it; `hangup engines` lists them)",
    )
    parser.add_argument(
        "--spawn",
        metavar="COMMAND",
        help="run the engine as a child process and restart it when it dies or is stuck; {port} is a free port",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file (TOML), such as hangup.toml")
    parser.add_argument("--help-all", action=HelpAll)
    settings, limits = scalar_fields(Settings), {field.name: field for field in scalar_fields(LimitSettings)}
    common = parser.add_argument_group("settings", "each also in the file, and in the environment as HANGUP_NAME")
    for field in (*(field for field in settings if field.name in _COMMON), *(limits[name] for name in _COMMON_LIMITS)):
        _add_flag(common, field)
    before = len(parser._actions)  # noqa: SLF001 - argparse has no other way to count them
    others = parser.add_argument_group("more settings")
    for field in settings:
        if field.name not in _COMMON:
            _add_flag(others, field)
    for title, names in _limit_groups().items():
        group = parser.add_argument_group(title)
        for name in names:
            if name not in _COMMON_LIMITS:
                _add_flag(group, limits[name])
    parser.add_rare(before)


def _limit_groups() -> dict[str, list[str]]:
    """Return the names of the limits by what they limit, as their classes say it."""
    groups: dict[str, list[str]] = {}
    for cls in reversed(LimitSettings.__mro__):
        own = [name for name in vars(cls).get("__annotations__", {}) if name in LimitSettings.__dataclass_fields__]
        if own:
            title = (cls.__doc__ or "").strip().partition(".")[0]
            groups.setdefault(title[0].lower() + title[1:], []).extend(own)
    return groups


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
