"""`KnownAddresses`: the addresses behind one DNS name, and which of them get calls.

    (unknown) ──▶ NEW ──answered a canary──▶ LISTED ◀──────▶ MISSING ──for `gone_s`──▶ (unknown)
        └────if nothing else gets calls────────▲    an answer has it, or lacks it

Only answers count. If the DNS server fails or does not answer, nothing is known, so nothing changes. That a name has no
addresses is an answer; but because it would leave nothing in use, the addresses keep their calls until `gone_s` is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hangup.core.admission import DnsListing


class HostAddress(NamedTuple):
    """One address behind a name."""

    host: str  # an IP address
    port: int


@dataclass(slots=True)
class _Entry:
    listing: DnsListing
    warm: bool  # it has answered a canary, or needed none
    missing_since: float | None = None  # None: the last answer had it


class KnownAddresses:
    def __init__(self) -> None:
        self._entries: dict[HostAddress, _Entry] = {}

    @property
    def listings(self) -> dict[HostAddress, DnsListing]:
        """All addresses, in a lasting order, and whether they get calls."""
        return {address: self._entries[address].listing for address in sorted(self._entries)}

    def warmed_up(self, address: HostAddress) -> None:
        """Note that a new address answered its canary."""
        entry = self._entries.get(address)
        if entry is not None:
            entry.warm = True
            if entry.listing is DnsListing.NEW:
                entry.listing = DnsListing.LISTED

    def answered(self, listed: Iterable[HostAddress], now: float, *, gone_s: float, most: int) -> None:
        """Take over an answer, but at most `most` addresses of it."""
        found = self._within(set(listed), most)
        warm_ones_found = any(self._entries[address].warm for address in found & self._entries.keys())
        for address in found - self._entries.keys():
            self._entries[address] = _Entry(DnsListing.NEW, warm=False)
        for address, entry in list(self._entries.items()):
            if address in found:
                entry.missing_since = None
                entry.warm = entry.warm or not warm_ones_found
                entry.listing = DnsListing.LISTED if entry.warm else DnsListing.NEW
                continue
            if entry.missing_since is None:
                entry.missing_since = now
            if now - entry.missing_since >= gone_s:
                del self._entries[address]
            elif found:
                entry.listing = DnsListing.MISSING

    def _within(self, found: set[HostAddress], most: int) -> set[HostAddress]:
        """Leave out addresses beyond `most`, new ones first, so that the others are not exchanged at each answer."""
        return set(sorted(found, key=lambda address: (address not in self._entries, address))[:most])
