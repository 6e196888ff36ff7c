"""What gateways that share their state cannot have."""

from __future__ import annotations

from collections.abc import Sequence

from hangup.config import BackendSettings
from hangup.errors import ConfigError


def check_for_sharing(backends: Sequence[BackendSettings]) -> None:
    """Raise if some backend is none that several gateways could share."""
    problems = []
    if not backends:
        problems.append("shared_state: the embedded engine lives in the gateway's process\n  hint: --upstream")
    problems += [
        f"shared_state: each gateway would spawn {backend.name or backend.url}\n  hint: start the engine yourself"
        for backend in backends
        if backend.spawn
    ]
    if problems:
        raise ConfigError(problems)
