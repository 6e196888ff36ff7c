"""Limits how many bytes of request bodies with files are in memory. Each body counts from its head to the end of its call."""

from __future__ import annotations

from hangup.core import reasons
from hangup.errors import Refusal
from hangup.gateway.http.head import RequestHead


class Uploads:
    def __init__(self) -> None:
        self.held_bytes = 0

    def hold(self, head: RequestHead, body_bytes_max: int, held_bytes_max: int) -> int:
        """Reserve room for a call's file and return its size. Without room, refuse the call before the client sends it."""
        size = body_bytes_max
        if head.content_length is not None:
            size = min(size, head.content_length)
        if self.held_bytes + size > held_bytes_max:
            raise Refusal(reasons.MEDIA_HELD)
        self.held_bytes += size
        return size

    def release(self, size: int) -> None:
        self.held_bytes -= size
