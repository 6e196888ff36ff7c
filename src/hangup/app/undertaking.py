"""The gateway as jobs see it: each item that is run here becomes a call, which goes the way of all calls."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hangup.app.entrance import unused
from hangup.app.exchange import Exchange
from hangup.config import Limits
from hangup.core import reasons
from hangup.core.account import Entry
from hangup.core.call import Call
from hangup.engines.backend import Backend
from hangup.jobs.errand import Errand
from hangup.wire.head import RequestHead

if TYPE_CHECKING:
    from hangup.app.gateway import Gateway


class Undertaking:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def limits(self) -> Limits:
        return self._gateway.limits

    @property
    def backends(self) -> dict[str, Backend]:
        return self._gateway.backends

    def limits_of_tenant(self, tenant: str) -> Limits:
        return self._gateway.limits_of("", tenant)

    def undertake(self, errand: Errand, id: str, headers: dict[str, str]) -> None:
        """Makes a call for an item of a job."""
        gateway, path = self._gateway, errand.claim.path
        call = Call(unused(id, gateway.calls), time.monotonic(), errand.peer)
        call.tenant = errand.tenant
        exchange = Exchange(gateway, errand, call, _head(path, tuple(headers.items())))
        exchange.errand = errand
        errand.exchange = exchange
        gateway.enter(exchange)
        try:
            self._begin(exchange, errand, path)
        except Exception as error:
            exchange.fault(error)  # it is live already, and nobody else would end it

    def _begin(self, exchange: Exchange, errand: Errand, path: str) -> None:
        gateway, call = self._gateway, exchange.call
        if gateway.tracer is not None:
            gateway.tracer.begin(call, None)
        route = gateway.router.find(path)
        if route is None:
            exchange.end(reasons.NOT_FOUND)
            return
        call.route = route.api.name
        exchange.start(route, gateway.limits_of(route.path, errand.tenant))
        exchange.body_arrived(errand.claim.body)

    def jobs_waiting(self, tenant: str) -> int:
        return self._gateway.admission.jobs_waiting(tenant)

    def book(self, entry: Entry) -> None:
        if self._gateway.store is not None:
            self._gateway.store.add(entry)

    def told(self, event: str, **fields: Any) -> None:
        self._gateway.log.event(event, **fields)

    def fault(self, error: Exception) -> None:
        self._gateway.log.fault(error)


@lru_cache(maxsize=256)
def _head(path: str, headers: tuple[tuple[str, str], ...]) -> RequestHead:
    """The head of a call that no client made."""
    lines = [f"POST {path} HTTP/1.1", "host: hangup", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    return RequestHead("\r\n".join([*lines, "", ""]).encode("latin-1"), count_max=128, url_bytes_max=8192)
