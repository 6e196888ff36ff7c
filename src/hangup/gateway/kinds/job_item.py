"""An item of a job: a call whose client is an object. It waits as long as it takes, and makes way for live clients."""

from __future__ import annotations

import math
import time

from hangup.core.admission import Ticket
from hangup.core.call import Call, CallTimeLimits
from hangup.gateway.backends.backend import Backend
from hangup.gateway.call_flow import CallFlow
from hangup.gateway.client_request import FlowPorts
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.placement import Placed
from hangup.gateway.request_policy import IncomingRequest


class JobItemCall(CallFlow):
    """Nobody is on the line: the job hangs up when nobody cares for it any more."""

    is_job = True

    __slots__ = ("_item", "yields")

    def __init__(self, ports: FlowPorts, item: ItemClient, call: Call, request: IncomingRequest) -> None:
        super().__init__(ports, item, call, request)
        self._item = item
        self.yields = item.yields

    @property
    def answer_bytes_max(self) -> int:
        """How much of an answer its client takes in."""
        return self.limits.answer_bytes_max

    def _clock(self, *, to_client: bool, from_engine: bool) -> CallTimeLimits:
        limits = self.limits
        return CallTimeLimits(
            first_token_s=limits.first_token_s if from_engine else math.inf, gap_s=limits.gap_s if from_engine else math.inf
        )

    def placed(self, backend: Backend, *, waited: bool = False) -> None:
        """Begins: it may have waited for as long as it took, and its time runs from now on."""
        waited_s = time.monotonic() - self.call.started_at
        self.call.clock = self.call.clock._replace(total_s=waited_s + self.limits.total_s)
        self._item.call_started()
        super().placed(backend, waited=waited)

    def _begin_anew(self) -> bool:
        return not self.call.answering_client and super()._begin_anew()  # its client keeps what it gets

    def _record_cost(self, ticket: Ticket[Placed] | None) -> None:
        """Leaves the booking to the job: what a result cost is booked when the result is kept."""
        self._item.call_ended(self.call, self.pending_stop, self.ports.accounting.entry(self.call, ticket))
