"""Whom a client's connection talks to: the call that it carries, and the owner of all connections."""

from __future__ import annotations

from typing import Protocol, TypeVar

from hangup.config import TrafficLimits
from hangup.core.reasons import Reason
from hangup.gateway.http.head import RequestHead

C_contra = TypeVar("C_contra", contravariant=True)


class RequestHandler(Protocol):
    """The call that a connection is carrying, as the connection sees it."""

    body_bytes_max: int
    body_s: float  # how long all of it may take

    def body_piece(self, piece: bytes) -> bool:
        """Some of a body that does not come in one piece; may refuse the call. True: it was taken, and need not be kept."""

    def body_arrived(self, body: bytes) -> None: ...

    def on_due(self) -> None:
        """A time set by `set_due` has come."""

    def client_left(self, reason: Reason) -> None: ...

    def refuse(self, reason: Reason, detail: str = "") -> None: ...

    def pause_engine(self) -> None: ...

    def resume_engine(self) -> None: ...

    def fault(self, error: Exception) -> None:
        """A bug of ours: it costs this call and no other."""


class RequestRouter(Protocol[C_contra]):
    """Who gets the requests of connections of type `C_contra`."""

    half_close_is_hangup: bool
    body_bytes: int  # of bodies that have not come whole yet, of all connections together

    @property
    def limits(self) -> TrafficLimits: ...

    def connected(self, connection: C_contra) -> bool:
        """Whether there is room for it; if not, it is told so and closed."""

    def may_refuse(self, connection: C_contra) -> bool:
        """Whether one for which there is no room can be told why; there is little room for those, too."""

    def disconnected(self, connection: C_contra) -> None: ...

    def open(self, connection: C_contra, head: RequestHead) -> RequestHandler | None:
        """A request's head is here; None when it has been refused already."""

    def refuse_unreadable(self, connection: C_contra, reason: Reason, detail: str) -> None: ...
