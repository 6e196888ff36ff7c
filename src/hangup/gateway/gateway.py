"""Puts the parts of the gateway together. Each part has a module of its own; this one only connects them.

Intake ──▶ kinds/ (CallFlow) ──▶ Routing, Placement ──▶ core.admission
                    │   └──────▶ Stopping ──▶ Reaper
                    └──────────▶ Accounting ──▶ ledger, log, traces
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from types import MappingProxyType

from hangup.config import LimitSettings, Settings
from hangup.core import reasons
from hangup.core.admission import TenantTerms
from hangup.core.reasons import Reason
from hangup.errors import HangupError
from hangup.gateway.accounting import Accounting
from hangup.gateway.backend_set import BackendEvents, Backends
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.pool import Dial
from hangup.gateway.call_lines import CallLines
from hangup.gateway.client.end_queue import EndQueue
from hangup.gateway.client_request import ClientRequest, FlowPorts
from hangup.gateway.cors import Origins
from hangup.gateway.engine_responses import EngineResponses
from hangup.gateway.intake import Intake
from hangup.gateway.job_services import JobServices
from hangup.gateway.jobs.provider import Provider
from hangup.gateway.jobs_port import JobsPort
from hangup.gateway.log import Log
from hangup.gateway.pace_watch import PaceWatch
from hangup.gateway.placement import Placement
from hangup.gateway.reaper import Peers
from hangup.gateway.registry import CallRegistry
from hangup.gateway.request_policy import RequestPolicy
from hangup.gateway.routing import Routing
from hangup.gateway.stopping import Stopping
from hangup.gateway.store.ledger import LedgerStore
from hangup.gateway.tracing import Tracer
from hangup.gateway.uploads import Uploads


class Gateway:
    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        log: Log,
        dials: Mapping[str, Dial] = MappingProxyType({}),
        store: LedgerStore | None = None,
        tracer: Tracer | None = None,
        *,
        shares_slots: bool = False,
        peers: Peers | None = None,
    ) -> None:
        limits, provider = settings.limits, settings.jobs == "provider"
        self.loop = loop
        self.log = log
        self.registry: CallRegistry[ClientRequest] = CallRegistry(limits.ended_calls_max)
        self.policy = RequestPolicy(settings, provider=provider)
        self.backends = Backends(loop, log, dials, has_peers=peers is not None)
        self.placement = Placement(limits, self.backends, loop, shares_slots=shares_slots)
        lines = CallLines(log, loop, lambda: self.limits.log_wait_s)
        self.accounting = Accounting(lines, store, tracer, limits)
        self.stopping = Stopping(self.registry.live, self.placement, log, lines, limits.zombie_stories_max, peers)
        self.routing = Routing(self.backends, loop, log, self.placement.regroup)
        self.uploads = Uploads()
        self.ends = EndQueue()
        self.jobs = JobServices()
        self.ports = FlowPorts(
            loop=loop,
            log=log,
            registry=self.registry,
            policy=self.policy,
            backends=self.backends,
            routing=self.routing,
            placement=self.placement,
            stopping=self.stopping,
            accounting=self.accounting,
            engine_responses=EngineResponses(),
            origins=Origins(),
            uploads=self.uploads,
            ends=self.ends,
            jobs=self.jobs,
        )
        self.jobs_port = JobsPort(self.ports, lambda: self.limits)
        if provider:
            self.jobs.provider = Provider(self.jobs_port, loop)
        self.intake = Intake(self.ports)
        self._paces = PaceWatch(self.registry.live, self.placement, loop)
        if not self.configure(settings):
            raise HangupError("the configuration could not be applied because of an internal error; the log has it")

    @property
    def settings(self) -> Settings:
        return self.policy.settings

    @property
    def limits(self) -> LimitSettings:
        return self.policy.settings.limits

    def configure(self, settings: Settings) -> bool:
        """Apply new settings, all or none; running calls keep the ones they started with.

        What can fail comes first. After that only a bug of ours can: it is logged and the other steps are done nevertheless, so
        that no part keeps the old settings. Return whether there was none.
        """
        backends = self.backends.prepare(settings)
        self.policy.configure(settings)
        terms = {tenant.name: TenantTerms.of(tenant) for tenant in settings.tenant}
        steps = (
            self.log.guard("", self.intake.configure, settings.limits, settings.half_close),
            self.log.guard("", self.placement.configure, settings.limits, terms),
            self.backends.use(settings, backends, self._backend_events()),
            self.log.guard("", self.placement.use, backends),
            self.log.guard("", self.accounting.take_prices, backends),
            self.log.guard("", self.routing.configure, settings),
        )
        return all(steps)

    def _backend_events(self) -> BackendEvents:
        return BackendEvents(
            configured=self.stopping.reaper.watch,
            changed=self._backend_changed,
            models_reported=self.routing.models_reported,
            queue_reported=self.placement.queue_reported,
            removed=self.stopping.reaper.forget,
        )

    def _backend_changed(self, backend: Backend) -> None:
        self.stopping.reaper.look(backend)  # work that it already runs may take up the room for calls
        self.placement.backend_changed(backend)

    # Shutdown

    def start_drain(self) -> None:
        """Stop accepting calls. Idle connections close now, busy ones after their answer."""
        self.intake.draining = True
        if self.jobs.api is not None:
            self.jobs.api.registry.stop()
        self.registry.end_all(reasons.DRAINED, self.log.guard, lambda flow: flow.ends_on_drain)
        self.intake.close_after_answers()

    def end_all(self, reason: Reason) -> None:
        """End all live calls."""
        self.registry.end_all(reason, self.log.guard)

    async def close(self, within_s: float = math.inf) -> None:
        """Close all parts, after the last call has ended. Spawned engines that do not stop within this time are killed."""
        self._paces.close()
        self.placement.close()
        if self.jobs.provider is not None:
            await self.jobs.provider.close()
        await self.routing.close()
        await self.backends.stop_watching()
        await self.stopping.close(within_s)
        self.intake.close_after_answers()
        await self.backends.close()
