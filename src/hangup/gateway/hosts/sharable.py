"""What gateways that share their state cannot have."""

from __future__ import annotations

from hangup.config import Settings
from hangup.errors import ConfigError


def check_for_sharing(settings: Settings) -> None:
    """Raise if the settings name something that gateways do not share yet."""
    problems = []
    if not settings.backend:
        problems.append("shared_state: the embedded engine lives in the gateway's process\n  hint: --upstream")
    problems += [
        f"shared_state: each gateway would spawn {backend.name or backend.url}\n  hint: start the engine yourself"
        for backend in settings.backend
        if backend.spawn
    ]
    if problems:
        raise ConfigError(problems)
