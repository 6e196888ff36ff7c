"""What exists right now: live calls, the calls that ended last, and the clients' connections."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from hangup.config import LimitSettings
from hangup.core.call import Call
from hangup.core.reasons import Reason
from hangup.gateway.client.connection import ClientConnection

TURNED_AWAY_MAX = 32  # connections beyond connections_max that are being told so; any more are cut


class Endable(Protocol):
    """A live call, as the registry sees it."""

    @property
    def call(self) -> Call: ...

    def end(self, reason: Reason, detail: str = "") -> None: ...


F = TypeVar("F", bound=Endable)


class CallRegistry(Generic[F]):
    """Live calls by id, and the calls that ended last."""

    def __init__(self, ended_max: int) -> None:
        self.live: dict[str, F] = {}
        self.ended: deque[Call] = deque(maxlen=ended_max)
        self.idle = asyncio.Event()  # set while no call is live
        self.idle.set()

    def add(self, flow: F) -> None:
        """Makes a call live. Another flow of the same call takes the place of the one before."""
        if not self.live:
            self.idle.clear()
        self.live[flow.call.id] = flow

    def remove(self, call: Call) -> None:
        """Takes a call that has ended out of the live ones, and keeps it among the ended."""
        self.live.pop(call.id, None)
        if not self.live:
            self.idle.set()
        self.ended.append(call)

    def find(self, id: str) -> Call | None:
        """Finds a call by its id, live or ended."""
        flow = self.live.get(id)
        if flow is not None:
            return flow.call
        return next((call for call in reversed(self.ended) if call.id == id), None)

    def end_all(self, reason: Reason, guard: Callable[..., bool], which: Callable[[F], bool] = lambda flow: True) -> None:
        """Ends all live calls that are meant; one that fails to end keeps no other alive."""
        for flow in [flow for flow in self.live.values() if which(flow)]:
            guard(flow.call.id, flow.end, reason)


class ClientConnections:
    """Counts clients' connections against what is allowed: the owner of sockets that `edge` asks for room."""

    def __init__(self, limits: LimitSettings) -> None:
        self.limits = limits
        self.open_connections: set[ClientConnection] = set()
        self.turned_away: set[ClientConnection] = set()  # they are being told that there is no room
        self.connections_allowed = limits.connections_max  # fewer where file descriptors are scarce
        self.connections_refused = 0
        self.handshakes = 0  # TLS connections that are not ready yet; they count like any other
        self.body_bytes = 0  # of bodies on their way in, of all connections together

    def connected(self, connection: ClientConnection) -> bool:
        """Takes a new connection in, if there is room."""
        if not self.has_room():
            self.count_refused()
            return False
        self.open_connections.add(connection)
        return True

    def has_room(self) -> bool:
        return len(self.open_connections) + self.handshakes < self.connections_allowed

    def count_refused(self) -> None:
        """Counts a connection for which there was no room."""
        self.connections_refused += 1

    def keep_to_refuse(self, connection: ClientConnection) -> bool:
        """Lets a connection without room stay until it was told why, if not too many are being told already."""
        if len(self.turned_away) >= TURNED_AWAY_MAX:
            return False
        self.turned_away.add(connection)
        return True

    def disconnected(self, connection: ClientConnection) -> None:
        self.open_connections.discard(connection)
        self.turned_away.discard(connection)

    def close_after_answers(self) -> None:
        """Closes idle connections now, and busy ones after the answer that they are waiting for."""
        for connection in list(self.open_connections):
            connection.close_after_this()
