"""Defines one setting: a dataclass field that knows its bounds and its documentation."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(
    default: Any,
    doc: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    per_call: bool = False,
    words: dict[str, float] | None = None,
) -> Any:
    """Return a dataclass field with the metadata that the loader, the flags and the documentation need. `words`: numbers that
    may be given by a word."""
    meta = {"doc": doc, "least": least, "most": most, "choices": choices, "per_call": per_call, "words": words or {}}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=meta)
    return field(default=default, metadata=meta)
