"""Ends calls: at once as long as few end in one instant, and in slices when thousands do.

A front proxy that dies takes thousands of clients with it, an engine that dies takes its calls, deadlines pass together: the
event loop reports all of them in one turn. If that turn handled them all, every other client would wait for it. So beyond a
few, ends wait here, and each turn works on them for a moment only:

    clients that left ──▶ all their engines are stopped, which is quick ──▶ ┐
    engines that died, deadlines that passed ─────────────────────────────▶ ┴▶ the calls end, in the order in which they came

Reading from a socket that its peer has closed costs the event loop itself some microseconds, too. So once a turn has seen many
clients leave, no other client whose call is running is read from: all that it could say is that it leaves as well. A few of
them are read from again in each turn, and no call ends before all of them are: stopping engines comes first. Likewise for the
connections to an engine that has lost many: most probably it has lost them all. If it loses them slowly, those that are read
from again may be lost together later; then they are held back again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

from hangup.core import reasons
from hangup.core.reasons import Reason
from hangup.gateway.client.handlers import RequestHandler

AT_ONCE_MAX = 32  # in each `_AT_ONCE_S`
SLICE_S = 0.005  # of CPU time, in each turn of the loop
SEEN_MAX = 256  # connections of one kind lost in one turn, before the others are held back; as many are read again in each turn
_AT_ONCE_S = 0.01


class Readable(Protocol):
    """A connection that may have been lost."""

    def hold_back(self) -> bool:
        """Read nothing more from it for now; return False if it cannot be held back, or is already."""

    def read_again(self) -> None: ...


class Leaving(Readable, Protocol):
    """The connection of a client that has left."""

    handler: RequestHandler | None  # None if its call has ended in the meantime
    transport: asyncio.Transport


class EndQueue:
    def __init__(
        self,
        clients: Collection[Readable] = (),
        clock: Callable[[], float] = time.monotonic,
        used_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`clients` always are the open connections; `used_s` returns the CPU time that this thread has used."""
        self.clients = clients
        self._clock = clock
        self._used_s = used_s
        self._to_stop: deque[tuple[Leaving, Reason]] = deque()  # their engines may be working
        self._to_end: deque[tuple[Callable[[], None], Callable[[Exception], None]]] = deque()  # an end, and who learns of a bug
        self._held_back: deque[Readable] = deque()
        self._since = 0.0
        self._handled = 0  # at once, since then
        self._lost: dict[int, int] = {}  # connections that were lost in this turn, by the identity of all of their kind
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._to_stop) + len(self._to_end) + len(self._held_back)

    def client_left(self, connection: Leaving, reason: Reason) -> bool:
        """Return False if the connection is to end its call at once; else that happens in a later turn."""
        if self._take_room():
            return False
        self._to_stop.append((connection, reason))
        self._schedule()
        if connection.handler is not None:
            connection.handler.pause_engine()  # nobody reads what it still sends
        self.note_loss(self.clients)
        return True

    def defer(self, end: Callable[[], None], fault: Callable[[Exception], None]) -> bool:
        """Return False if the caller is to end a call at once; else `end` is called in a later turn, and `fault` if it
        raises."""
        if self._take_room():
            return False
        self._to_end.append((end, fault))
        self._schedule()
        return True

    def note_loss(self, one_of: Collection[Readable]) -> None:
        """Note that one of these connections is being lost, and hold back the others if many are in this turn."""
        if not self._lost:
            asyncio.get_running_loop().call_soon(self._lost.clear)
        lost = self._lost[id(one_of)] = self._lost.get(id(one_of), 0) + 1
        if lost == (2 * SEEN_MAX if self._held_back else SEEN_MAX):  # those that are read from again may all be lost
            self._held_back.extend([one for one in one_of if one.hold_back()])
            self._schedule()

    def _take_room(self) -> bool:
        """Take one of the ends that are handled at once; return False if there is none left for now."""
        if self._scheduled:
            return False
        now = self._clock()
        if now - self._since > _AT_ONCE_S:
            self._since, self._handled = now, 0
        self._handled += 1
        return self._handled <= AT_ONCE_MAX

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Work on the ends for a moment. The loop looks at its sockets before the next moment."""
        self._scheduled = False
        until = self._used_s() + SLICE_S
        try:
            while self._to_stop and self._used_s() < until:
                connection, reason = self._to_stop.popleft()
                self._to_end.append((partial(_end, connection, reason), _raise))
                if connection.handler is not None:
                    connection.handler.stop_engine(reason)
            while self._to_end and not self._held_back and self._used_s() < until:
                _carry_out(*self._to_end.popleft())
        finally:  # a bug in one end must not keep the others
            for _ in range(min(SEEN_MAX, len(self._held_back))):
                self._held_back.popleft().read_again()
            if len(self):
                self._schedule()


def _carry_out(end: Callable[[], None], fault: Callable[[Exception], None]) -> None:
    try:
        end()
    except Exception as error:
        fault(error)


def _raise(error: Exception) -> None:
    raise error


def _end(connection: Leaving, reason: Reason) -> None:
    handler, connection.handler = connection.handler, None
    try:
        if handler is not None:
            handler.client_left(reason)
    except Exception as error:
        assert handler is not None
        handler.fault(error)
    finally:
        connection.transport.close()


def why_lost(error: Exception | None) -> Reason:
    """Return how a client left, by the error with which its connection ended."""
    if error is None:
        return reasons.CLIENT_FIN
    return reasons.CLIENT_SILENT if isinstance(error, TimeoutError) else reasons.CLIENT_RESET
