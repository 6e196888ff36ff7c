"""What the gateway must know of an engine beyond HTTP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Abort:
    """The request that tells an engine to stop one call."""

    path: str
    body: bytes = b""


class Adapter:
    """A kind of engine. The defaults are right for one that stops when its connection is cut."""

    name = ""
    title = ""
    # Headers that must not reach it, in lower case.
    stripped_headers: frozenset[bytes] = frozenset()

    def recognises(self, server: str, models: bytes) -> bool:
        """Whether a backend is of this kind, from its Server header and its answer to GET /v1/models."""
        return False

    def abort(self, call_id: str) -> Abort | None:
        """How to stop a call explicitly, besides cutting its connection; None where the engine has no such way."""
        return None
