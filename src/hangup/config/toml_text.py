"""Writes configuration files with comments: the complete example, and the file of `hangup init`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import Field
from typing import Any

from hangup.config.limits import LimitSettings
from hangup.config.schema import LISTS, Settings, scalar_fields

_WIDTH = 98
SCHEMA_URL = "https://raw.githubusercontent.com/hangup-dev/hangup/main/docs/hangup.schema.json"
_HEAD = f"""\
#:schema {SCHEMA_URL}
"""
_EXAMPLE_HEAD = """\
# hangup.toml: every setting with its default, commented out. `hangup config example` prints this file.
# Check yours with `hangup config check hangup.toml`, start with `hangup serve --config hangup.toml`.
"""
_LIMITS_TITLE = "Limits. Those that a [[tenant]] or a [[route]] may set, too, say so."


def example() -> str:
    """Return a file with every setting, commented out."""
    parts = [_HEAD + _EXAMPLE_HEAD]
    parts += [_setting(field) for field in scalar_fields(Settings)]
    parts.append(f"{comment(_LIMITS_TITLE)}[limits]\n")
    parts += [_setting(field) for field in scalar_fields(LimitSettings)]
    for name, cls in LISTS.items():
        title = f"{(cls.__doc__ or '').strip()} Repeat the table for several."
        parts.append(f"{comment(title)}#[[{name}]]\n")
        parts += [_setting(field) for field in scalar_fields(cls)]
    return "\n".join(parts)


def written(
    notes: str,
    settings: Mapping[str, Any],
    limits: Mapping[str, Any],
    tables: Iterable[tuple[str, str, Mapping[str, Any]]],
    usual: Iterable[str] = (),
) -> str:
    """Return a file with the given values. `tables` are rows of lists: name, comment, values. `usual` names settings and limits
    that are shown with their defaults, commented out."""
    usual = set(usual)
    parts = [_HEAD + comment(notes)]
    for values, cls, head in ((settings, Settings, ""), (limits, LimitSettings, "[limits]\n")):
        lines = [_setting(f, values.get(f.name)) for f in scalar_fields(cls) if f.name in values or f.name in usual]
        parts += [head + "\n".join(lines)] if lines else []
    for name, note, row in tables:
        parts.append(comment(note) + f"[[{name}]]\n" + "".join(f"{key} = {value(given)}\n" for key, given in row.items()))
    return "\n".join(parts)


def comment(text: str) -> str:
    """Return the text as comment lines."""
    lines: list[str] = []
    for line in text.splitlines():
        indent = "  " if line.startswith("- ") else ""
        lines += textwrap.wrap(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def value(given: Any) -> str:
    """Return a value in TOML."""
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, Mapping):
        return "{ " + ", ".join(f"{key} = {value(each)}" for key, each in given.items()) + " }" if given else "{}"
    if isinstance(given, list | tuple):
        return "[" + ", ".join(map(value, given)) + "]"
    # A string of JSON is one of TOML, except that TOML allows no DEL.
    return json.dumps(given, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(given, str) else repr(given)


def _setting(field: Field[Any], given: Any = None) -> str:
    default = field.default if not callable(field.default_factory) else field.default_factory()
    meta = field.metadata
    doc = meta["doc"] + (f" One of {', '.join(meta['choices'])}." if meta["choices"] else "")
    doc += " (also per tenant and route)" if meta["per_call"] else ""
    line = f"#{field.name} = {value(default)}\n" if given is None else f"{field.name} = {value(given)}\n"
    return comment(doc) + line
