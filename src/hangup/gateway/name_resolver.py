"""Asks DNS which addresses are behind a name."""

from __future__ import annotations

import asyncio

import dns.asyncresolver
import dns.exception
import dns.resolver

from hangup.config.check import dns_server_of
from hangup.core.discovery import HostAddress
from hangup.errors import DnsFailure, HangupError


class NameResolver:
    """Asks `server` (see the setting `dns_server`), or the system's servers if it is empty."""

    def __init__(self, server: str) -> None:
        given = dns_server_of(server) if server else None
        try:
            self._resolver = dns.asyncresolver.Resolver(configure=given is None)
        except dns.resolver.NoResolverConfiguration as error:
            raise HangupError(f"dns+ backends need a DNS server, and the system names none ({error}): set dns_server") from None
        self._resolver.use_search_by_default = True  # so a pod finds the short names of its namespace
        if given is not None:
            self._resolver.nameservers, self._resolver.port = [given[0]], given[1]

    async def find(self, name: str, port: int, timeout_s: float) -> list[HostAddress]:
        """Return all addresses behind a name; none if DNS says that it has none. A name that starts with _ has SRV records,
        which tell hosts and ports. Raise `DnsFailure` if there is no answer."""
        try:
            async with asyncio.timeout(timeout_s):
                if not name.startswith("_"):
                    return [HostAddress(address, port) for address in await self._addresses(name, timeout_s)]
                hosts = await self._services(name, timeout_s)
                found = await asyncio.gather(*(self._addresses(host, timeout_s) for host, _ in hosts))
                both = zip(hosts, found, strict=True)
                return [HostAddress(address, port) for (_, port), addresses in both for address in addresses]
        except TimeoutError:
            raise DnsFailure(f"no answer in {timeout_s:g} s") from None
        except (dns.exception.DNSException, OSError, ValueError) as error:
            raise DnsFailure(f"{error}" or type(error).__name__) from None

    async def _addresses(self, name: str, timeout_s: float) -> list[str]:
        try:
            answers = await self._resolver.resolve_name(name, lifetime=timeout_s)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        return list(answers.addresses())

    async def _services(self, name: str, timeout_s: float) -> list[tuple[str, int]]:
        """Return host and port of each SRV record of the first priority: the others are for when all of these are down."""
        try:
            answer = await self._resolver.resolve(name, "SRV", lifetime=timeout_s)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        first = min(record.priority for record in answer)
        # RFC 2782: a target of "." says that the service is not available.
        return [(str(r.target), r.port) for r in answer if r.priority == first and str(r.target) != "."]
