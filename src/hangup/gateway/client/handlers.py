"""The interfaces that a client's connection calls: the call that it carries, and the router of all connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from hangup.config import TrafficLimits
from hangup.core.reasons import Reason
from hangup.gateway.http.head import RequestHead

C_contra = TypeVar("C_contra", contravariant=True)


class RequestHandler(Protocol):
    """The call that a connection carries, as the connection sees it."""

    body_bytes_max: int
    body_s: float  # how long the whole body may take

    def body_piece(self, piece: bytes) -> bool:
        """Take a part of a body that arrives in several; may refuse the call. Return True if the part need not be kept."""

    def body_arrived(self, body: bytes) -> None: ...

    def on_due(self) -> None:
        """Act on a deadline that was set by `set_due`."""

    def stop_engine(self, reason: Reason) -> None:
        """Stop the engine's work now, if it is not done. `client_left` follows with the same reason, a little later because
        many clients have left at once."""

    def client_left(self, reason: Reason) -> None: ...

    def refuse(self, reason: Reason, detail: str = "") -> None: ...

    def pause_engine(self) -> None: ...

    def resume_engine(self) -> None: ...

    def fault(self, error: Exception) -> None:
        """Handle a bug of ours, at the cost of this call and no other."""


class Ends(Protocol[C_contra]):
    """Takes ends of calls that must wait because many calls end at once."""

    def client_left(self, connection: C_contra, reason: Reason) -> bool:
        """Return False if the connection is to end its call at once; else the call will be ended a little later."""

    def defer(self, end: Callable[[], None], fault: Callable[[Exception], None], /) -> bool:
        """Return False if the caller is to end a call at once; else `end` will be called a little later, and `fault` if it
        raises."""


class RequestRouter(Protocol[C_contra]):
    """The receiver of the requests of all connections, which are of type `C_contra`."""

    half_close_is_hangup: bool
    body_bytes: int  # size of incomplete bodies, of all connections together

    @property
    def ends(self) -> Ends[C_contra]: ...

    @property
    def limits(self) -> TrafficLimits: ...

    def connected(self, connection: C_contra) -> bool:
        """Return True if there is room for the connection; otherwise it is refused and closed."""

    def keep_to_refuse(self, connection: C_contra) -> bool:
        """Keep a connection without room until it has a refusal; return False if too many are kept already."""

    def disconnected(self, connection: C_contra) -> None: ...

    def open(self, connection: C_contra, head: RequestHead) -> RequestHandler | None:
        """Start a call from its request's head; return None if it was refused already."""

    def refuse_unreadable(self, connection: C_contra, reason: Reason, detail: str) -> None: ...
