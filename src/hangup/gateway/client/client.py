"""The receiver of a call's answer: a client's connection, or a job that runs without a client."""

from __future__ import annotations

from typing import Protocol


class ResponseSink(Protocol):
    peer: str
    http11: bool  # True if `write` accepts chunks as the engine framed them

    @property
    def stalled(self) -> bool:
        """True if it has not read all that was written."""

    @property
    def will_close(self) -> bool:
        """True if this answer is the last on its connection."""

    def begin(self, head: bytes, *, chunked: bool) -> None: ...

    def send(self, payload: bytes) -> None: ...

    def write(self, data: bytes, /) -> None: ...

    def flush(self) -> None: ...

    def finish(self) -> None: ...

    def break_off(self) -> None: ...

    def drop(self) -> None: ...

    def has_left(self) -> bool: ...

    def set_due(self, due: float) -> None: ...

    def close_after_this(self) -> None: ...
