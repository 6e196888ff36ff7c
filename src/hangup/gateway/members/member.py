"""This process as a member: what it reports to the hub, and what it does with the hub's answers."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hangup.core.admission import NO_LIMIT, BackendLoad, Observation, SharedLimit
from hangup.core.members import (
    Allotments,
    Grant,
    LearnedFigures,
    LeftCall,
    PlaceReport,
    ServedElsewhere,
    TenantUse,
    TokenLevel,
    TokensCharged,
    WholeFigures,
    backend_places,
    learned_figures,
    needs_places,
    new_under_old_names,
    shared_limits,
    take_observations,
    tenant_uses,
)
from hangup.core.reaper import PendingStop
from hangup.gateway.gateway import Gateway
from hangup.gateway.members.quotas import SharedQuotas


@dataclass(frozen=True, slots=True)
class CallsReport:
    """What a member says of its calls."""

    new: list[LeftCall]  # calls that came into an engine since the last report,
    gone: list[str]  # and the ids of those that are there no more
    live: int
    output: dict[str, float]  # when each backend last sent anything (monotonic)
    in_engines: dict[str, int] = field(default_factory=dict)  # calls, by backend


class Member:
    """`report_soon` is called when a call had to wait for places that may be unused elsewhere."""

    def __init__(self, gateway: Gateway, report_soon: Callable[[], None]) -> None:
        self._gateway = gateway
        self._allotments = Allotments()
        self._sent_calls: dict[str, tuple[str, str]] = {}  # the calls in engines that the hub knows: backend and key
        self._quotas = SharedQuotas(gateway.placement, self._allotments, report_soon)
        self._charged: dict[str, float] = {}  # by tenant, by the last report
        self._served_elsewhere = ServedElsewhere()
        gateway.placement.on_wait = report_soon

    def close(self) -> None:
        self._gateway.placement.on_wait = None
        self._quotas.close()

    # Reports

    def in_hurry(self) -> bool:
        """Return whether a place may be needed here or elsewhere."""
        return needs_places(self._gateway.placement.admission)

    def places(self) -> list[PlaceReport]:
        """Say how many places of each resource are held here, and would be used."""
        for load in new_under_old_names(self._gateway.placement.admission, self._allotments):
            self._gateway.placement.allot(load, self._allotments.allowed(load.name))
        rows = backend_places(self._gateway.placement.admission, self._allotments)
        rows += self._quotas.reports()
        self._allotments.keep_only(row.resource for row in rows)
        return rows

    def learned(self) -> list[LearnedFigures]:
        """Say what is here of the calls at backends whose slots are learned."""
        return learned_figures(self._gateway.placement.admission)

    def observations(self) -> dict[str, list[Observation]]:
        """Say what was seen of these calls since the last time."""
        return take_observations(self._gateway.placement.admission, time.monotonic())

    def limits(self) -> dict[str, SharedLimit]:
        """Return the limits of the backends whose slots are learned."""
        return shared_limits(self._gateway.placement.admission)

    def note_whole(self, rows: Iterable[WholeFigures]) -> None:
        """Note what is known of all members' calls at these backends."""
        limits = self.limits()
        for row in rows:
            if row.backend in limits:
                limits[row.backend].note_whole(*row[1:])

    def tenants(self) -> list[TenantUse]:
        """Say which tenants have calls here."""
        return tenant_uses(self._gateway.placement.admission)

    def note_served(self, by_others: Mapping[str, float], term: int = 0) -> None:
        """Take into account what other members served tenants, by the hub of this term."""
        self._served_elsewhere.note(self._gateway.placement.admission, by_others, term)

    def tokens_charged(self) -> list[TokensCharged]:
        """Say what tenants with `tokens_per_minute` were charged here so far, if that has changed."""
        rows = []
        for name, tenant in self._gateway.placement.admission.tenants.items():
            allowance = tenant.allowance
            if allowance is not None and self._charged.get(name) != allowance.charged:
                self._charged[name] = allowance.charged
                rows.append(TokensCharged(name, allowance.per_minute, allowance.charged))
        return rows

    def token_totals(self) -> list[TokensCharged]:
        """Say what tenants with `tokens_per_minute` were charged here so far, whether that has changed or not."""
        now, tenants = time.monotonic(), self._gateway.placement.admission.tenants.items()
        allowances = [(name, tenant.allowance) for name, tenant in tenants if tenant.allowance is not None]
        return [TokensCharged(name, a.per_minute, a.charged, a.remaining(now)) for name, a in allowances]

    def assume_tokens(self, share: float) -> None:
        """Use this share of tenants' tokens, because there never was a hub to ask."""
        now = time.monotonic()
        for tenant in self._gateway.placement.admission.tenants.values():
            if tenant.allowance is not None:
                tenant.allowance.limit_to(share, now)

    def take_token_levels(self, levels: Iterable[TokenLevel], members: int) -> None:
        """Use what is left of tenants' tokens in all of so many members."""
        now = time.monotonic()
        for tenant, level, included in levels:
            allowance = self._gateway.placement.admission.tenant(tenant).allowance
            if allowance is not None:
                allowance.set_level(level, included, members, now)

    def assume(self, part: Callable[[int], int], *, keep: bool) -> None:
        """Use a part of every resource, because there is no hub to ask; with `keep`, only of those of which this process holds
        nothing. Of slots that are learned, it uses what it has learned itself."""
        for row in self.places():
            if keep and row.held:
                continue
            learned = row.capacity >= NO_LIMIT
            allowed = 0 if learned else part(row.capacity)
            changed = self._allotments.assume(row.resource, allowed)
            if learned:
                self._learn_alone(row.resource)
            elif changed:
                self._use(row.resource, allowed)

    def _learn_alone(self, resource: str) -> None:
        load = next(load for load in self._loads() if load.name == resource)
        if isinstance(load.limiter, SharedLimit) and load.limiter.follows:
            load.limiter.go_alone()
            self._gateway.placement.load_changed(load)

    def asks(self) -> list[str]:
        """Return the resources of which calls wait for more, until the hub has said whether more may come."""
        return self._quotas.asked_for()

    def report_all_calls(self) -> CallsReport:
        """Say all, because the hub has lost what it knew."""
        self._sent_calls = {}
        return self.calls()

    def calls(self) -> CallsReport:
        """Say what changed since the last time."""
        gateway = self._gateway
        output = {name: b.last_output_at for name, b in gateway.backends.by_name.items() if b.last_output_at > -math.inf}
        before, now = self._sent_calls, dict[str, tuple[str, str]]()
        new, in_engines = list[LeftCall](), Counter[str]()
        for id, flow in gateway.registry.live.items():
            key = flow.engine_key
            if key and flow.backend is not None:
                call, name = flow.call, flow.backend.name
                if call.first_token_at is not None and call.progress_at > output.get(name, -math.inf):
                    output[name] = call.progress_at
                entry = now[id] = (name, key)
                in_engines[name] += 1
                if before.get(id) != entry:
                    choices = flow.ticket.choices if flow.ticket is not None else 1
                    new.append(LeftCall(id, *entry, call.tenant, call.model, call.tokens_out, choices))
        self._sent_calls = now
        gone = [id for id in before if id not in now]
        return CallsReport(new, gone, len(gateway.registry.live), output, in_engines)

    def _loads(self) -> Iterable[BackendLoad]:
        return self._gateway.placement.admission.fleet.loads

    # What the hub says

    def take_grants(self, grants: Iterable[tuple[str, int, int]]) -> None:
        """Use what was granted. Report afterwards: others may wait for what is returned."""
        for name, allowed, number in grants:
            if self._allotments.take(Grant("", name, allowed, number)):
                self._use(name, allowed)

    def _use(self, resource: str, allowed: int) -> None:
        load = next((load for load in self._loads() if load.name == resource), None)
        if load is not None:
            self._gateway.placement.allot(load, allowed)
        else:
            self._quotas.granted(resource, allowed)

    def considered(self, more_may_come: dict[str, bool]) -> None:
        """Take note of the answer to `asks`."""
        self._quotas.considered(more_may_come)

    def note_output(self, at: dict[str, float]) -> None:
        """Note when backends last sent anything to any member: one that serves only others is not stuck."""
        for name, moment in at.items():
            backend = self._gateway.backends.by_name.get(name)
            if backend is not None:
                backend.last_output_at = max(backend.last_output_at, moment)

    def note_others(self, calls: Mapping[str, int]) -> None:
        """Note how many calls the other members have at each backend: they use its time as well."""
        now = time.monotonic()
        for name, backend in self._gateway.backends.by_name.items():
            backend.load.time.note_others(calls.get(name, 0), now)

    def stop_calls(self, member: str, calls: Iterable[LeftCall], kind: str) -> None:
        """Stop the calls that a dead member left in the engines, and watch them as if they had been ours. `kind`: what the
        member was, in the log."""
        for call in calls:
            self._gateway.log.guard(call.id, self._stop_call, member, call, kind)

    def _stop_call(self, member: str, call: LeftCall, kind: str) -> None:
        stopping, backend = self._gateway.stopping, self._gateway.backends.by_name.get(call.backend)
        if backend is None:
            return
        stop = PendingStop(
            call.id,
            time.monotonic(),
            key=call.key,
            tokens=call.tokens,
            choices=call.choices,
            tenant=call.tenant,
            model=call.model,
            cause=f"{kind}_died",
        )
        stop.abort_sent = stopping.aborts.send(backend, call.key)
        stopping.reaper.add(backend, stop, first_token=True)
        whose = {"tenant": call.tenant, "backend": call.backend, kind: member}
        self._gateway.log.event("left_call_stopped", id=call.id, **whose, abort_sent=stop.abort_sent)
