"""Whoever a call is answered to: a connection, or a job that has nobody on the line."""

from __future__ import annotations

from typing import Protocol


class ResponseSink(Protocol):
    peer: str
    http11: bool  # whether `write` may be given chunks as an engine framed them

    @property
    def stalled(self) -> bool:
        """Whether it has not read what was written."""

    @property
    def will_close(self) -> bool:
        """Whether this answer is the last on its connection."""

    def begin(self, head: bytes, *, chunked: bool) -> None: ...

    def send(self, payload: bytes) -> None: ...

    def write(self, data: bytes, /) -> None: ...

    def flush(self) -> None: ...

    def finish(self) -> None: ...

    def break_off(self) -> None: ...

    def drop(self) -> None: ...

    def left(self) -> bool: ...

    def set_due(self, due: float) -> None: ...

    def close_after_this(self) -> None: ...
