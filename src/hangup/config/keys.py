"""Decides which API key a backend gets: its own (`api_key_env`), the client's, or none.

A client's key is meant for one party. If backends belong to several parties and nothing is configured, none of them gets it: a
call could be sent, or fail over, to a party that must not see the key.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from hangup.config.schema import BackendSettings, Settings
from hangup.errors import ConfigError

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


def backends_with_client_key(backends: tuple[BackendSettings, ...]) -> frozenset[BackendSettings]:
    """Return the backends that get the key that a client sends."""
    keyless = [b for b in backends if not b.api_key_env]
    explicit = frozenset(b for b in keyless if b.client_key == "pass")
    open_ = frozenset(b for b in keyless if b.client_key == "auto")
    if explicit:
        return explicit
    return open_ if len({party(b.url) for b in open_}) <= 1 else frozenset()


def warning(settings: Settings) -> str:
    """Return what an operator should know about clients' keys, or ""."""
    open_ = [b for b in settings.backend if not b.api_key_env and b.client_key == "auto"]
    if not open_ or settings.tenant or backends_with_client_key(settings.backend):
        return ""
    parties = ", ".join(sorted({party(b.url) for b in open_}))
    return (
        f"clients' API keys are forwarded to no backend, because the backends belong to several parties ({parties})\n"
        '  hint: set api_key_env for each, or client_key = "pass" for those that the keys are for, "drop" for the others'
    )


def read(variable: str, env: Mapping[str, str]) -> str:
    """Return a backend's key from the environment. Raise `ConfigError` if it is unusable, because otherwise the client's key
    would be sent."""
    problem = key_problem(variable, env)
    if problem:
        raise ConfigError([f"backend: {problem}"])
    return env[variable]


def key_problem(variable: str, env: Mapping[str, str]) -> str:
    """Return what is wrong with a key, or ""; never show the key itself."""
    key = env.get(variable, "")
    if not key:
        return f"api_key_env names {variable}, which is not set in the environment"
    if not all("!" <= letter <= "~" for letter in key):
        kind = "a line break" if "\n" in key or "\r" in key else "a space or a character that is not ASCII"
        return f"api_key_env names {variable}, whose value contains {kind}"
    return ""
