"""`JobsPort`: the gateway's interface for jobs. Each job item becomes a call like any other."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

from hangup.config import JobLimits, JobServiceLimits
from hangup.core import reasons
from hangup.core.account import Entry
from hangup.core.call import Call
from hangup.core.reaper import PendingStop
from hangup.gateway.backends.backend import Backend
from hangup.gateway.client_request import FlowPorts
from hangup.gateway.http.head import RequestHead
from hangup.gateway.jobs.item_client import ItemClient
from hangup.gateway.kinds.job_item import JobItemCall
from hangup.gateway.request_policy import IncomingRequest, unused


class JobsPort:
    def __init__(self, ports: FlowPorts, limits: Callable[[], JobServiceLimits]) -> None:
        self._ports = ports
        self._limits = limits  # returns the current ones: a reload replaces them

    @property
    def limits(self) -> JobServiceLimits:
        return self._limits()

    @property
    def backends(self) -> dict[str, Backend]:
        return self._ports.backends.by_name

    def limits_of_tenant(self, tenant: str) -> JobLimits:
        return self._ports.policy.limits_of("", tenant)

    def run_item(self, item: ItemClient, id: str, headers: dict[str, str]) -> None:
        """Start a call for an item of a job."""
        ports, policy, path = self._ports, self._ports.policy, item.claim.path
        call = Call(unused(id, ports.registry.live), time.monotonic(), item.peer)
        call.tenant = item.tenant
        route = policy.router.find(path)
        limits = policy.limits if route is None else policy.limits_of(route.path, item.tenant)
        request = IncomingRequest(_head(path, tuple(headers.items())), limits, route)
        flow = JobItemCall(ports, item, call, request)
        item.flow = flow
        ports.registry.add(flow)
        try:
            self._begin(flow, item)
        except Exception as error:
            flow.fault(error)  # the call is registered as live, and nobody else would end it

    def _begin(self, flow: JobItemCall, item: ItemClient) -> None:
        tracer, route = self._ports.accounting.tracer, flow.request.route
        if tracer is not None:
            tracer.begin(flow.call, None, flow.request.head.method, flow.request.head.path)
        if route is None:
            flow.end(reasons.NOT_FOUND)
            return
        flow.call.route = route.api.name
        flow.body_arrived(item.claim.body)

    def jobs_waiting(self, tenant: str) -> int:
        return self._ports.placement.admission.jobs_waiting(tenant)

    def record_cost(self, entry: Entry) -> None:
        if self._ports.accounting.store is not None:
            self._ports.accounting.store.add(entry)

    def when_confirmed(self, stop: PendingStop, callback: Callable[[], None]) -> None:
        self._ports.stopping.when_confirmed(stop, callback)

    def log_event(self, event: str, **fields: object) -> None:
        self._ports.log.event(event, **fields)

    def fault(self, error: Exception) -> None:
        self._ports.log.fault(error)


@lru_cache(maxsize=256)
def _head(path: str, headers: tuple[tuple[str, str], ...]) -> RequestHead:
    """Build the request head of a call without a client."""
    lines = [f"POST {path} HTTP/1.1", "host: hangup", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    return RequestHead("\r\n".join([*lines, "", ""]).encode("latin-1"), count_max=128, url_bytes_max=8192)
