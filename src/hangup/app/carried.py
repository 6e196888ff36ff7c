"""What stands between a client's connection and its exchange, where the exchange alone does not know what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangup.core.reasons import Reason

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
