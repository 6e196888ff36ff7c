"""Bodies with files: how many bytes of them may be in memory at a time. Each is held from its head to the end of its call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangup.core import reasons
from hangup.errors import Refusal
from hangup.wire.head import RequestHead

if TYPE_CHECKING:
    from hangup.app.exchange import Exchange


class Uploads:
    def __init__(self) -> None:
        self.held_bytes = 0

    def hold(self, exchange: Exchange, head: RequestHead, bytes_max: int) -> None:
        """Room for a call's file; without it the call is refused before the client has sent it."""
        size = exchange.body_bytes_max
        if head.content_length is not None:
            size = min(size, head.content_length)
        if self.held_bytes + size > bytes_max:
            raise Refusal(reasons.MEDIA_HELD)
        exchange.held_bytes = size
        self.held_bytes += size

    def release(self, exchange: Exchange) -> None:
        self.held_bytes -= exchange.held_bytes
        exchange.held_bytes = 0
