"""Decides which API key a backend gets: its own (`api_key_env` and the like), the client's, or none.

A client's key is meant for one party. If backends belong to several parties and nothing is configured, none of them gets it: a
call could be sent, or fail over, to a party that must not see the key.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from hangup.config.schema import BackendSettings, Settings
from hangup.config.secrets import sources

PRIVATE = "this network"
_PRIVATE_ENDINGS = (".local", ".localhost", ".internal", ".lan", ".svc", ".home.arpa", ".test")
_SECOND_LEVEL = frozenset(["ac", "co", "com", "edu", "gov", "net", "org"])  # as in co.uk


def party(url: str) -> str:
    """Return the party that a backend belongs to, judging by its address: a domain, or this network."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        return host if ipaddress.ip_address(host).is_global else PRIVATE
    except ValueError:
        pass
    labels = host.split(".")
    if len(labels) == 1 or host.endswith(_PRIVATE_ENDINGS):
        return PRIVATE
    of_country = len(labels[-1]) == 2 and labels[-2] in _SECOND_LEVEL
    return ".".join(labels[-3 if of_country else -2 :])


def has_own_key(backend: BackendSettings) -> bool:
    return bool(sources(backend, "api_key"))


def backends_with_client_key(backends: tuple[BackendSettings, ...]) -> frozenset[BackendSettings]:
    """Return the backends that get the key that a client sends."""
    keyless = [b for b in backends if not has_own_key(b)]
    explicit = frozenset(b for b in keyless if b.client_key == "pass")
    open_ = frozenset(b for b in keyless if b.client_key == "auto")
    if explicit:
        return explicit
    return open_ if len({party(b.url) for b in open_}) <= 1 else frozenset()


def warning(settings: Settings) -> str:
    """Return what an operator should know about clients' keys, or ""."""
    open_ = [b for b in settings.backend if not has_own_key(b) and b.client_key == "auto"]
    if not open_ or settings.tenant or backends_with_client_key(settings.backend):
        return ""
    parties = ", ".join(sorted({party(b.url) for b in open_}))
    return (
        f"clients' API keys are forwarded to no backend, because the backends belong to several parties ({parties})\n"
        '  hint: give each a key of its own, or set client_key = "pass" for those that the keys are for, "drop" for the others'
    )
