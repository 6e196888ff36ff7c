"""Encodes errors for the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hangup.core.reasons import Reason

Encode = Callable[[Any], bytes | str]
SSE = "text/event-stream"


def error_body(reason: Reason, id: str) -> dict[str, Any]:
    """Return the error that the client sees; details stay in the log."""
    return {"error": {"message": reason.message, "type": reason.outcome.value, "code": reason.code, "id": id}}
