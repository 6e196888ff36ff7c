"""Decides which host names are addresses, and which mean this machine."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    return host.lower() == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
