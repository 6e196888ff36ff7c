"""Watches a client that has not taken what we wrote: is it slow, has it stopped reading, or is its host gone?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hangup.config import ClientLimits
from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.gateway.client import sockets

# A timer that fires this late means that this process did not run. Data that arrived meanwhile waits in the sockets, and is
# read first.
LATE_S = 0.5
CATCH_UP_S = 0.05


class StallWatch:
    """Runs from the moment the transport's buffer is full until it drains, or until the client counts as gone."""

    __slots__ = ("_due", "_give_up", "_limits", "_loop", "_since", "_size", "_timer", "_transport")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        limits: ClientLimits,
        give_up: Callable[[Reason], None],
    ) -> None:
        self._loop, self._transport, self._limits, self._give_up = loop, transport, limits, give_up
        self._since = loop.time()
        self._size = transport.get_write_buffer_size()
        # From here on we decide: the kernel cannot tell a slow reader from a dead one.
        self._set_user_timeout(limits.write_stall_s + limits.client_silence_s)
        self._look_in(min(limits.write_stall_s, self._silence_remaining_s()))

    def _silence_remaining_s(self) -> float:
        """Return the time left for a host that may be silent already. Data written just now must still have time to arrive."""
        whole = self._limits.client_silence_s
        sock = self._transport.get_extra_info("socket")
        ack_age = sockets.seconds_since_ack(sock) if sockets.retransmits(sock) else None
        return whole if ack_age is None else max(whole - ack_age, whole / 2)

    def end(self) -> None:
        """Stop watching, because the client reads again."""
        self.cancel()
        self._set_user_timeout(self._limits.client_silence_s)

    def cancel(self) -> None:
        self._timer.cancel()

    def _look_in(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now, limits = self._loop.time(), self._limits
        if (late := now - self._due) > LATE_S:
            self._since += late
            self._look_in(CATCH_UP_S)
            return
        size = self._transport.get_write_buffer_size()
        ack_age = sockets.seconds_since_ack(self._transport.get_extra_info("socket"))
        if ack_age is not None and ack_age >= limits.client_silence_s:
            self._give_up(reasons.CLIENT_SILENT)
            return
        if size < self._size:
            self._since, self._size = now, size
        remaining_s = self._since + limits.write_stall_s - now
        if remaining_s <= 0:
            self._give_up(reasons.CLIENT_STALLED)
            return
        if ack_age is not None:
            remaining_s = min(remaining_s, limits.client_silence_s - ack_age)
        self._look_in(max(remaining_s, 0.01))

    def _set_user_timeout(self, seconds: float) -> None:
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sockets.set_user_timeout(sock, seconds)
