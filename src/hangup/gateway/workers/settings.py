"""What workers get as their settings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from hangup.config import Settings
from hangup.config.addresses import is_discovered
from hangup.config.check import default_name
from hangup.config.load import Configuration
from hangup.gateway import ports
from hangup.gateway.hosts.sharable import check_for_sharing
from hangup.gateway.job_opener import jobs_path
from hangup.gateway.otlp import configured_exporter
from hangup.gateway.request_policy import RequestPolicy


def worker_count(settings: Settings) -> int:
    """Return how many workers to run; 0 in the settings means one for each core that this process may use."""
    return settings.workers or len(os.sched_getaffinity(0))


def ledger_path(settings: Settings, folder: Path) -> str:
    return settings.ledger or str(folder / "ledger.sqlite")


def for_worker(configuration: Configuration, port: int, folder: Path, count: int) -> Configuration:
    """Return the configuration of each of `count` workers. `folder` is for what would be in memory otherwise, and must be
    shared."""
    settings = configuration.settings
    jobs = settings.jobs if jobs_path(settings, port) != "" else str(folder / "jobs.sqlite")
    ledger = ledger_path(settings, folder)
    alone_share = settings.shared_state_alone_share / count  # it is of this host
    own = dataclasses.replace(settings, jobs=jobs, ledger=ledger, shared_state_alone_share=alone_share)
    return dataclasses.replace(configuration, settings=own)


def peer_ports(first: int, slot: int, count: int) -> list[int]:
    """Return the ports at which a worker may be asked whether it lives: one of its slot, and another one, because a worker and
    its successor are there at the same time. 0: any free port."""
    return [first + slot, first + count + slot] if first else [0]


def check_as_worker(settings: Settings) -> None:
    """Raise if a worker could not use the settings: it would keep its old ones, but one that starts later could not start."""
    ports.server_tls(settings)
    if settings.otlp_endpoint:
        configured_exporter(settings, os.environ, settings.limits.trace_send_s)
    RequestPolicy(settings, provider=False)
    if settings.shared_state:
        check_for_sharing(settings.backend)


def undrained(drained: Iterable[str], old: Settings, new: Settings) -> set[str]:
    """Return which of these backends a reload replaces or removes in the workers, which ends their drain there."""
    changed = set(old.backend) ^ set(new.backend)
    if old.slots != new.slots:  # of all backends that name none
        changed |= {backend for backend in new.backend if not backend.slots}
    names = {backend.name or default_name(backend.url) for backend in changed}
    kept = {backend.name or default_name(backend.url) for backend in new.backend} - names
    found_by_dns = any(is_discovered(backend.url) for backend in changed)  # their names are those of addresses
    return {name for name in drained if name in names or (found_by_dns and name not in kept)}
