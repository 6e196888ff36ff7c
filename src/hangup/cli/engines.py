"""`hangup engines`: the kinds of engine that hangup knows."""

from __future__ import annotations

import argparse
from typing import Any

from hangup.engines.adapters import ADAPTERS


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("engines", help="list the engines that hangup knows")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    width = max(map(len, ADAPTERS))
    for adapter in ADAPTERS.values():
        print(f"{adapter.name:<{width}}  {adapter.title}")
    return 0
