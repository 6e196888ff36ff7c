"""What stands between a client's connection and its exchange, where the exchange alone does not know what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangup.app.relay import PassRelay
from hangup.core.reasons import Reason
from hangup.engines.backend import Backend
from hangup.engines.connection import EngineConnection
from hangup.wire.body import Decoder
from hangup.wire.head import ResponseHead

if TYPE_CHECKING:
    from hangup.app.exchange import Exchange


class Carried:
    """Passes on to the exchange what the connection tells."""

    body_bytes_max: int
    body_s: float

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.body_bytes_max = exchange.body_bytes_max
        self.body_s = exchange.body_s

    def body_piece(self, piece: bytes) -> bool:
        return False

    def body_arrived(self, body: bytes) -> None:
        raise NotImplementedError

    def on_due(self) -> None:
        self._exchange.on_due()

    def client_left(self, reason: Reason) -> None:
        self._exchange.end(reason)

    def refuse(self, reason: Reason, detail: str = "") -> None:
        self._exchange.end(reason, detail)

    def fault(self, error: Exception) -> None:
        self._exchange.fault(error)

    def pause_engine(self) -> None:
        self._exchange.pause_engine()

    def resume_engine(self) -> None:
        self._exchange.resume_engine()


class PassedOn(Carried):
    """A call that goes past the queue and takes no place: what the exchange asks of whoever chose its backend."""

    def relay(self, decoder: Decoder, final: Reason, head: ResponseHead) -> PassRelay:
        return PassRelay(self._exchange, decoder, final, None)

    def elsewhere(self, status: int = 0) -> Backend | None:
        """Another backend that may be asked, after the one at hand failed or answered `status`."""
        return None

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent again when its connection turns out to have been closed before."""
        return True

    def stays(self, backend: Backend, connection: EngineConnection | None) -> bool:
        """The call ends before it was answered: True if no work is left behind that the reaper must look after."""
        return False

    def over(self) -> None:
        """The call has ended, one way or another."""
