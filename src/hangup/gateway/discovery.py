"""`Discovery`: makes a backend of every address behind the name of a dns+ backend, and follows the name as it changes.

`core.discovery` decides what an answer means. This module asks DNS at intervals, brings the backends into line with the
decisions, and sends new backends a canary before they get calls.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from hangup.config import BackendSettings, DiscoveredBackend, DiscoveryLimits
from hangup.config.addresses import is_discovered
from hangup.config.check import default_name
from hangup.core.admission import DnsListing, HealthEvent
from hangup.core.discovery import HostAddress, KnownAddresses
from hangup.errors import DnsFailure, OutOfResources
from hangup.gateway.backend_set import Backends
from hangup.gateway.backends.backend import Backend
from hangup.gateway.log import Log
from hangup.gateway.reaper import canary
from hangup.tasks import TASKS

_EVENTS = {
    DnsListing.NEW: HealthEvent.FOUND_NEW,
    DnsListing.LISTED: HealthEvent.LISTED,
    DnsListing.MISSING: HealthEvent.UNLISTED,
}
_BEST_FIRST = (DnsListing.LISTED, DnsListing.NEW, DnsListing.MISSING)
_LOGGED_MAX = 100  # addresses in a log line


class _Found(NamedTuple):
    """An address behind a name, and the backend that is there."""

    backend: Backend
    known: KnownAddresses
    address: HostAddress
    listing: DnsListing


class Discovery:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._configured: tuple[BackendSettings, ...] = ()
        self._known: dict[str, KnownAddresses] = {}  # by the configured URL
        self._failing: set[str] = set()  # URLs of names for which the last query had no answer
        self._warm_ups: dict[Backend, asyncio.Task[None]] = {}

    async def configure(self, backends: tuple[BackendSettings, ...], limits: DiscoveryLimits, dns_server: str) -> None:
        """Take these backends, and ask for the names among them that are new. What is known of others is kept until `settled`:
        the configuration may yet be refused."""
        self._configured, self._limits = backends, limits
        if self._names():
            from hangup.gateway.name_resolver import NameResolver  # noqa: PLC0415 (dnspython is only for dns+ backends)

            self._resolver = NameResolver(dns_server)
        for url in self._names():
            self._known.setdefault(url, KnownAddresses())
        await self._ask_all(url for url in self._names() if not self._known[url].listings)

    def settled(self) -> None:
        """Forget the names that are no longer configured."""
        names = self._names()
        self._known = {url: known for url, known in self._known.items() if url in names}
        self._failing &= names

    def _names(self) -> set[str]:
        return {backend.url for backend in self._configured if is_discovered(backend.url)}

    def expanded(self) -> tuple[BackendSettings, ...]:
        """Return the configured backends, with one for each address behind a name. An address behind two names is one
        backend."""
        backends: dict[str, BackendSettings] = {}
        for configured in self._configured:
            if is_discovered(configured.url):
                for address, listing in self._known[configured.url].listings.items():
                    backends.setdefault(_name(configured, address), _at(configured, address, listing))
            else:
                backends[configured.name or default_name(configured.url)] = configured
        return tuple(backends.values())

    async def follow(self, backends: Backends, use: Callable[[], Awaitable[None]]) -> None:
        """Ask for all names at intervals, until cancelled. `use` makes the gateway use the `expanded` backends."""
        while True:
            await asyncio.sleep(self._limits.dns_interval_s)
            if not self._names():
                continue
            await self._ask_all(self._names())
            if list(self.expanded()) != [backend.settings for backend in backends.by_name.values()]:
                await use()
            for found in self._in_use(backends):
                if found.backend.load.health.apply(_EVENTS[found.listing]):
                    backends.changed(found.backend, f"DNS: {found.listing}")
                if found.listing is DnsListing.NEW and found.backend.load.health.answered:
                    self._start_warm_up(found, backends)

    async def close(self) -> None:
        tasks = list(self._warm_ups.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_all(self, urls: Iterable[str]) -> None:
        await asyncio.gather(*(self._ask(url, self._known[url]) for url in urls))

    async def _ask(self, url: str, known: KnownAddresses) -> None:
        """Query DNS for one name."""
        limits, parts = self._limits, urlsplit(url)
        port = parts.port or (443 if parts.scheme == "dns+https" else 80)
        try:
            found = await self._resolver.find(parts.hostname or "", port, limits.dns_timeout_s)
        except DnsFailure as failure:
            if url not in self._failing:
                self._failing.add(url)
                self._log.event("dns_failed", url=url, error=str(failure))
            return
        if url in self._failing:
            self._failing.discard(url)
            self._log.event("dns_recovered", url=url)
        before, now = known.listings, asyncio.get_running_loop().time()
        known.answered(found, now, gone_s=limits.dns_gone_s, most=limits.dns_addresses_max)
        if known.listings != before:
            listed = {_shown(address): listing for address, listing in list(known.listings.items())[:_LOGGED_MAX]}
            ignored = max(0, len(set(found)) - limits.dns_addresses_max)
            self._log.event("dns_changed", url=url, addresses=listed, count=len(known.listings), ignored=ignored)

    def _in_use(self, backends: Backends) -> Iterable[_Found]:
        """Return the backend at each address. One behind two names gets calls as long as either lists it; one that is
        configured itself does not depend on DNS."""
        best: dict[Backend, _Found] = {}
        for configured in self._configured:
            known = self._known.get(configured.url)
            if known is None:
                continue
            for address, listing in known.listings.items():
                backend = backends.by_name.get(_name(configured, address))
                if backend is None or not isinstance(backend.settings, DiscoveredBackend):
                    continue
                other = best.get(backend)
                if other is None or _BEST_FIRST.index(listing) < _BEST_FIRST.index(other.listing):
                    best[backend] = _Found(backend, known, address, listing)
        return best.values()

    def _start_warm_up(self, found: _Found, backends: Backends) -> None:
        if found.backend not in self._warm_ups:
            self._warm_ups[found.backend] = TASKS.start("warm-up", self._warm_up(found, backends))

    async def _warm_up(self, found: _Found, backends: Backends) -> None:
        """Send a canary to a new backend. If it answers, it gets calls; if not, the next round sends another one."""
        backend = found.backend
        try:
            wrong = await canary.send(backend, backend.limits.canary_s) if backend.settings.canary else ""
            if wrong:
                self._log.event("warm_up_failed", backend=backend.name, error=wrong)
            elif backends.by_name.get(backend.name) is backend:  # it was not removed meanwhile
                found.known.warmed_up(found.address)
                if backend.load.health.apply(_EVENTS[found.known.listings.get(found.address, DnsListing.MISSING)]):
                    backends.changed(backend, "warmed up")
        except OutOfResources:
            pass  # nothing was learned about the backend
        finally:
            del self._warm_ups[backend]


def _at(configured: BackendSettings, address: HostAddress, listing: DnsListing) -> DiscoveredBackend:
    """Return the settings of the backend at one address: as configured, with an address and a name of its own."""
    values = {field.name: getattr(configured, field.name) for field in dataclasses.fields(configured)}
    parts = urlsplit(configured.url.removeprefix("dns+"))
    values["url"] = parts._replace(netloc=f"{parts.hostname}:{address.port}").geturl()
    values["name"] = _name(configured, address)
    return DiscoveredBackend(**values, address=address.host, warm_up=listing is DnsListing.NEW)


def _name(configured: BackendSettings, address: HostAddress) -> str:
    return f"{configured.name}-{_shown(address)}" if configured.name else _shown(address)


def _shown(address: HostAddress) -> str:
    return default_name(f"http://{f'[{address.host}]' if ':' in address.host else address.host}:{address.port}")
