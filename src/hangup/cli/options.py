"""Flags for the fields of a dataclass of options, whose metadata have the help (`doc`)."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def add_options(parser: argparse.ArgumentParser, options: type[Any]) -> None:
    """Add --host, --port and a flag for each field."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 picks a free one (default: 8000)")
    for field in fields(options):
        flag, doc, default = "--" + field.name.replace("_", "-"), field.metadata["doc"], field.default
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", help=doc)
        else:
            text = doc if default == "" else f"{doc} (default: {default})"
            metavar = "NAME" if isinstance(default, str) else "N"
            parser.add_argument(flag, type=type(default), default=default, metavar=metavar, help=text)


def read_options(arguments: argparse.Namespace, options: type[T]) -> T:
    """Return the options that were chosen."""
    return options(**{field.name: getattr(arguments, field.name) for field in fields(options)})  # type: ignore[arg-type]
