"""Decides why a request cannot be read: the reason and the detail of its refusal."""

from __future__ import annotations

from hangup.config import ClientLimits
from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.errors import WireError
from hangup.gateway.http.head import has_bare_lf, status_of_overlong

_REASON_BY_STATUS = {
    414: reasons.URL_TOO_LONG,
    431: reasons.HEADERS_TOO_LARGE,
    501: reasons.NOT_IMPLEMENTED,
    505: reasons.HTTP_VERSION_NOT_SUPPORTED,
}


def why_invalid(error: WireError) -> tuple[Reason, str]:
    return _REASON_BY_STATUS.get(error.status, reasons.MALFORMED), f"Invalid request: {error}."


def why_head_cannot_end(received: bytes, scanned: int, limits: ClientLimits) -> tuple[Reason, str] | None:
    """Return why more bytes cannot complete a head that has no end yet, or None if they can; `scanned` bytes are known."""
    if has_bare_lf(received, scanned):
        return reasons.MALFORMED, "Invalid request: a line ends in a bare LF."
    if len(received) >= limits.header_bytes_max:
        return _REASON_BY_STATUS[status_of_overlong(received, limits.url_bytes_max)], ""
    return None
