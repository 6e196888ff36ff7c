"""What an address in the configuration may look like: of a backend, a collector, a webhook."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from urllib.parse import urlsplit

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,63}")
_HOST_MAX = 253  # of DNS
_ENDPOINT = re.compile(r"(?:/v1)?/(?:(?:chat/)?completions|embeddings|messages|responses)/?$")


def url_problem(url: str) -> str:
    """Return what is wrong with the URL of a configured backend, or ""."""
    if is_discovered(url):
        return _address_problem(url.removeprefix("dns+")) or _name_problem(url)
    return _address_problem(url)


def _address_problem(url: str) -> str:
    """Return what is wrong with the URL of one backend, or ""."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"{url!r} is not a valid URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"expected http://host[:port] or https://host[:port], got {url!r}"
    if parts.username or parts.password:
        return "a URL must not contain a user or password; use api_key_env"
    if not url.isascii():
        return f"{url!r} has characters that a URL cannot have; write the host name in its xn-- form"
    if not all("!" <= letter <= "~" for letter in url):  # it would break the first line of every request
        return f"{url!r} has spaces or control characters; percent-encode them, such as %20"
    if parts.query or parts.fragment or port == 0:
        return f"expected no query, no fragment and a port above 0, got {url!r}"
    if not is_host(parts.hostname):
        return f"{url!r}: {parts.hostname} is neither the name of a host nor an IP address"
    if ending := _ENDPOINT.search(parts.path):
        return f"{url!r} is the address of an endpoint; leave {ending[0]} out"
    return ""


def is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    printable = all("!" <= letter <= "~" for letter in url)
    return parts.scheme in ("http", "https") and printable and port != 0 and is_host(parts.hostname or "")


def is_host(name: str) -> bool:
    """Return whether something can have this name: an IP address, or labels of letters, digits, - and _."""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        labels = name.removesuffix(".").split(".")
    return len(name) <= _HOST_MAX and not labels[-1].isdigit() and all(_LABEL.fullmatch(label) for label in labels)


def is_discovered(url: str) -> bool:
    """Return whether the backends at this URL are found by DNS."""
    return url.startswith("dns+")


def _name_problem(url: str) -> str:
    """Return what is wrong with the name in a dns+ URL, or ""."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return f"{url!r} has an address where dns+ needs a name; leave dns+ out"
    if name.startswith("_") and parts.port is not None:
        return f"{url!r} names an SRV record, which has the port: leave :{parts.port} out"
    return ""
