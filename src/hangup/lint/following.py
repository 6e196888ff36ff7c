"""Where the callers of a function that runs inference are looked for, and of which functions they are not."""

from __future__ import annotations

import re
from typing import Any

from hangup.lint.facts import FunctionFacts
from hangup.lint.names import ANYONES
from hangup.lint.text import words_in

# A function with such a name sends requests, but not for a generation.
_SENDS_OTHERS = re.compile(
    r"embed|search|rerank|index|ingest|upload|download|load|crawl|scrape|token|auth|login|sign|notif|email|mail|webhook|health|ping|^open$"
    r"|alert|discord|slack|telegram|whatsapp|sms|audit|metric|telemetry|billing|payment|invoice",
    re.I,
)


def question(function: FunctionFacts, *, below: bool) -> dict[str, Any]:
    """Return how to ask `SourceFiles` for the files that may call a function."""
    like = words_in(function.class_name) if function.class_name and function.name in ANYONES else ()
    return {"name": function.name, "method": bool(function.class_name), "below": below, "like": like}


def sends_others(function: FunctionFacts) -> bool:
    """Return whether a function that sends requests is unlikely to send those of a handler for inference."""
    named = _SENDS_OTHERS.search(function.name) or _SENDS_OTHERS.search(function.class_name)
    return named is not None or (bool(function.class_name) and function.name in ANYONES)
