"""What a reload refuses, and what it cannot change because it is bound to the process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hangup.config import Settings
from hangup.errors import HangupError

_FIXED = (
    "host",
    "port",
    "workers",
    "admin_host",
    "admin_port",
    "admin_names",
    "config_watch_s",
    "log",
    "log_format",
    "ledger",
    "ledger_days",
    "jobs",
    "jobs_days",
    "shared_state",
    "shared_state_name",
    "shared_state_required",
    "shared_state_alone_share",
    "peer_host",
    "peer_port",
)
_FIXED_LIMITS = (
    "client_silence_s",
    "shared_state_timeout_s",
    "gateway_silence_s",
    "ended_calls_max",
    "history_looks_max",
    "history_minutes_max",
    "history_quarters_max",
    "history_groups_max",
    "history_events_max",
    "metric_label_sets_max",
    "metric_histograms_max",
    "log_lines_max",
    "ledger_flush_s",
    "ledger_accounts_max",
    "ledger_bytes_max",
    "wal_bytes_max",
    "traced_calls_max",
    "trace_release_s",
    "trace_send_s",
    "trace_share",
    "trace_slow_s",
    "zombie_stories_max",
    "admin_connections_max",
)


def needs_restart(at_start: Settings, new: Settings) -> list[str]:
    """Return the settings that a restart would change."""
    names = [name for name in _FIXED if getattr(new, name) != getattr(at_start, name)]
    return names + [name for name in _FIXED_LIMITS if getattr(new.limits, name) != getattr(at_start.limits, name)]


def with_fixed(at_start: Settings, new: Settings) -> Settings:
    """Return new settings for a process that joins others: what only a restart changes is as it was when those started."""
    kept: dict[str, Any] = {name: getattr(at_start, name) for name in _FIXED}
    for names in (("tls_cert", "tls_key"), ("otlp_endpoint", "otlp_protocol")):  # a reload can change, but not add or remove
        if bool(getattr(new, names[0])) != bool(getattr(at_start, names[0])):
            kept |= {name: getattr(at_start, name) for name in names}
    limits = {name: getattr(at_start.limits, name) for name in _FIXED_LIMITS}
    return replace(new, **kept, limits=replace(new.limits, **limits))


def check_reload(old: Settings, new: Settings) -> None:
    """Raise if the new configuration lacks all backends or tenants: the file may be truncated, or empty for a moment."""
    if old.backend and not new.backend:
        raise HangupError("the new configuration has no backend; restart hangup to serve with the embedded engine")
    if old.tenant and not new.tenant:
        raise HangupError("the new configuration has no tenant, so clients would need no key; restart hangup to allow that")
