"""Tells whether a connection failed because this process or host has no file descriptors, memory or local ports left.

Such a failure says nothing about the engine. The same error numbers also have other causes, so the doubtful ones are tested.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket

_LACK = frozenset([errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
_NUMBER = re.compile(r"\[Errno (\d+)\]")


async def is_own_lack(error: Exception, host: str, port: int, loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a connection to `host` failed for want of our own resources."""
    numbers = _numbers(error)
    if _LACK.intersection(numbers):
        return True
    if errno.EADDRNOTAVAIL in numbers:
        return await _ports_used_up(numbers, host, port, loop)
    # Without descriptors a name cannot be looked up either; the resolver hides that behind errors of its own.
    return not isinstance(error, ConnectionError) and not _can_open_socket()


def _numbers(error: Exception) -> list[int]:
    """Return the error numbers of all addresses that were tried; if they differ, the event loop puts them into one message."""
    number = getattr(error, "errno", None)
    return [number] if number is not None else [int(found) for found in _NUMBER.findall(str(error))]


async def _ports_used_up(numbers: list[int], host: str, port: int, loop: asyncio.AbstractEventLoop) -> bool:
    """Tell used-up local ports from an address of a kind that this host does not have, such as IPv6."""
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return not _can_open_socket()
    addresses = {(family, address) for family, _, _, _, address in found}
    failed = numbers.count(errno.EADDRNOTAVAIL) if len(numbers) > 1 else len(addresses)  # all alike are told as one
    return failed > sum(not _has_source(family, address) for family, address in addresses)


def _has_source(family: int, address: tuple[object, ...]) -> bool:
    """Return whether this host has an address from which it could reach `address`. UDP sends nothing to find out."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def _can_open_socket() -> bool:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
    except OSError as error:
        return error.errno not in _LACK
    return True
