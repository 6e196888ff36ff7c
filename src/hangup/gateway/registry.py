"""Keeps the live calls, the last ended calls, and the clients' connections."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from hangup.config import TrafficLimits
from hangup.core.call import Call
from hangup.core.reasons import Reason
from hangup.gateway.client.connection import ClientConnection

TURNED_AWAY_MAX: Final = 32  # connections beyond connections_max that get an error answer; any more are cut


class Endable(Protocol):
    """A live call, as far as the registry needs it."""

    @property
    def call(self) -> Call: ...

    def end(self, reason: Reason, detail: str = "") -> None: ...


F = TypeVar("F", bound=Endable)


class CallRegistry(Generic[F]):
    """The live calls by id, and the last ended calls."""

    def __init__(self, ended_max: int) -> None:
        self.live: dict[str, F] = {}
        self.ended: deque[Call] = deque(maxlen=ended_max)
        self.idle = asyncio.Event()  # set while no call is live
        self.idle.set()

    def add(self, flow: F) -> None:
        """Add a live call. A new flow of the same call replaces the one before."""
        if not self.live:
            self.idle.clear()
        self.live[flow.call.id] = flow

    def remove(self, call: Call) -> None:
        """Move a call from the live calls to the ended ones."""
        self.live.pop(call.id, None)
        if not self.live:
            self.idle.set()
        self.ended.append(call)

    def find(self, id: str) -> Call | None:
        """Find a live or ended call by its id."""
        flow = self.live.get(id)
        if flow is not None:
            return flow.call
        return next((call for call in reversed(self.ended) if call.id == id), None)

    def end_all(self, reason: Reason, guard: Callable[..., bool], which: Callable[[F], bool] = lambda flow: True) -> None:
        """End all live calls that `which` selects; an error in one does not keep the others alive."""
        for flow in [flow for flow in self.live.values() if which(flow)]:
            guard(flow.call.id, flow.end, reason)


class ClientConnections:
    """Counts the clients' connections against the limits, and decides whether a new one has room."""

    def __init__(self, limits: TrafficLimits) -> None:
        self.limits = limits
        self.open_connections: set[ClientConnection] = set()
        self.turned_away: set[ClientConnection] = set()  # these get an error answer, because there is no room
        self.connections_allowed = limits.connections_max  # lower if file descriptors are scarce
        self.connections_refused = 0
        self.handshakes = 0  # unfinished TLS handshakes; they count as connections
        self.body_bytes = 0  # of all request bodies that are arriving, over all connections

    def connected(self, connection: ClientConnection) -> bool:
        """Accept a new connection if there is room; return whether it was accepted."""
        if not self.has_room():
            self.count_refused()
            return False
        self.open_connections.add(connection)
        return True

    def has_room(self) -> bool:
        return len(self.open_connections) + self.handshakes < self.connections_allowed

    def count_refused(self) -> None:
        """Count a connection that was refused for lack of room."""
        self.connections_refused += 1

    def keep_to_refuse(self, connection: ClientConnection) -> bool:
        """Keep a refused connection open for its error answer, unless there are too many of them."""
        if len(self.turned_away) >= TURNED_AWAY_MAX:
            return False
        self.turned_away.add(connection)
        return True

    def disconnected(self, connection: ClientConnection) -> None:
        self.open_connections.discard(connection)
        self.turned_away.discard(connection)

    def close_after_answers(self) -> None:
        """Close idle connections now, and busy ones after their current answer."""
        for connection in list(self.open_connections):
            connection.close_after_this()
