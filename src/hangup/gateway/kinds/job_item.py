"""A call for an item of a job, with an object in place of the client. It may queue without limit, and yields to live calls."""

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
    """A call without a client's connection: the job hangs up when nobody wants its result any more."""

    is_job = True

    __slots__ = ("_item", "yields")

    def __init__(self, ports: FlowPorts, item: ItemClient, call: Call, request: IncomingRequest) -> None:
        super().__init__(ports, item, call, request)
        self._item = item
        self.yields = item.yields

    @property
    def answer_bytes_max(self) -> int:
        """The largest answer that its `ItemClient` accepts."""
        return self.limits.answer_bytes_max

    def _clock(self, *, to_client: bool, from_engine: bool) -> CallTimeLimits:
        limits = self.limits
        return CallTimeLimits(
            first_token_s=limits.first_token_s if from_engine else math.inf, gap_s=limits.gap_s if from_engine else math.inf
        )

    def placed(self, backend: Backend, *, waited: bool = False) -> None:
        """Start the attempt. The total time limit starts here, so that time in the queue does not count."""
        waited_s = time.monotonic() - self.call.started_at
        self.call.clock = self.call.clock._replace(total_s=waited_s + self.limits.total_s)
        self._item.call_started()
        super().placed(backend, waited=waited)

    def _begin_anew(self) -> bool:
        return not self.call.answering_client and super()._begin_anew()  # its client cannot discard what it has received

    def _record_cost(self, ticket: Ticket[Placed] | None) -> None:
        """Pass the cost to the job, which adds it to the ledger when it stores the result."""
        self._item.call_ended(self.call, self.pending_stop, self.ports.accounting.entry(self.call, ticket))
