"""Runs loads and policies side by side, and computes the figures to report."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields

from hangup.config import Settings
from hangup.sim import policies
from hangup.sim.engine import EngineModel
from hangup.sim.load import Load
from hangup.sim.policies import BASELINES, HANGUP, JOBS, GatewayMaker
from hangup.sim.sharing import SharedMaker, SharingModel
from hangup.sim.world import Capacity, Run, capacity, run

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to simulate. A load of 1 offers as many output tokens as the engines can sustain (G*)."""

    load: Load
    settings: Settings
    model: EngineModel
    loads: Sequence[float]
    policies: Sequence[str] = (HANGUP,)
    backends: int = 1
    gateways: int = 1
    sharing: SharingModel | None = None  # how gateways share slots and quotas; None: each is on its own
    calls: int = 5000  # that arrive within the counted time at a load of 1
    warm_s: float = 120.0
    seeds: Sequence[int] = (1,)
    rate: float | None = None  # calls a second, whatever the engines can sustain; replaces `loads`


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of the table: means over the seeds. Shares are from 0 to 1."""

    load: float
    policy: str
    backends: int
    goodput_ratio: float  # delivered tokens against the bound min(load, 1) · G*
    waste_share: float  # of the engines' work, the share for clients that had hung up
    idle_share: float  # unused capacity, as a share of the offered load up to the capacity; with jobs, of the whole capacity
    mix_shift: float  # 1 − ratio − idle − waste: served calls cost more or less than offered ones
    refused_share: float  # of attempts
    left_share: float  # of attempts whose client left the queue
    served_share: float  # of calls that ended
    ttft_s_p50: float
    ttft_s_p99: float
    refusal_s_p50: float  # from an attempt to its refusal
    refusal_s_p99: float
    mix_points: float  # largest difference between offered and served shares, of prompt quartiles and streams, in points
    engine_queue_peak: int
    goodput_tokens_s: float
    calls: int
    attempts: int
    calls_per_cpu_s: float
    jobs_fill_share: float = math.nan  # of the capacity that clients left idle, the share that finished job items used
    jobs_yields_s: float = math.nan  # items preempted per second
    gateways: int = 1
    granted_beyond: int = 0  # the most places of an engine that gateways could use at a time beyond its slots
    hub_messages_s: float = math.nan  # between a gateway and the hub, both ways, per second
    gateway_deaths: int = 0
    freed_s_mean: float = math.nan  # how long a dead gateway's places stayed taken
    freed_s_max: float = math.nan


def study(plan: Plan, progress: Progress | None = None) -> Iterable[Row]:
    found = capacity(plan.load, plan.model, plan.settings.limits.step_slo_s)
    loads = plan.loads
    if plan.rate is not None:
        loads = [plan.rate * plan.load.mean_output / found.output_s / plan.backends]
    for load in loads:
        for policy in plan.policies:
            rows = [one(plan, found, load, policy, seed, progress) for seed in plan.seeds]
            yield mean(rows)


def one(plan: Plan, found: Capacity, load: float, policy: str, seed: int, progress: Progress | None = None) -> Row:
    rate = load * found.output_s * plan.backends / plan.load.mean_output
    seconds = plan.calls / (rate / load)

    def report_progress(share: float) -> None:
        if progress is not None:
            progress(f"{policy} at {load:g}× (seed {seed})", share)

    began = time.process_time()
    simulated = run(
        plan.load,
        [plan.model] * plan.backends,
        maker(policy, plan, seed),
        rate=rate,
        seconds=seconds,
        warm_s=plan.warm_s,
        seed=seed,
        gateways=plan.gateways,
        progress=report_progress,
    )
    return row(plan, found, load, policy, simulated, time.process_time() - began)


def maker(policy: str, plan: Plan, seed: int) -> GatewayMaker:
    if policy in (HANGUP, JOBS):
        items = plan.load.requests if policy == JOBS else ()
        if plan.sharing is not None and (plan.gateways > 1 or plan.sharing.deaths_per_minute):
            return SharedMaker(plan.settings, items, plan.sharing, seed)
        return policies.hangup(plan.settings, items)
    return BASELINES[policy][1]


def row(plan: Plan, found: Capacity, load: float, policy: str, simulated: Run, cpu_s: float) -> Row:
    tally, model = simulated.tally, plan.model
    # The engine time that a token costs: prompt tokens at the prefill rate, output tokens at the rate of a full batch.
    prompt_s = 1 / model.prefill_tokens_s
    output_s = (model.step_s + model.step_per_call_s * model.slots) / model.slots
    done = simulated.read * prompt_s + simulated.written * output_s
    good = tally.good_prompt_tokens * prompt_s + tally.good_tokens * output_s
    jobs = tally.jobs_prompt_tokens * prompt_s + tally.jobs_tokens * output_s
    with_jobs = policy == JOBS
    able = (found.prompt_s * prompt_s + found.output_s * output_s) * plan.backends * tally.seconds
    idle_capacity = able - good  # capacity that clients left idle
    able *= 1.0 if with_jobs else min(load, 1.0)
    bound = found.output_s * plan.backends * tally.seconds * min(load, 1.0)
    ratio = tally.good_tokens / bound
    waste = max(1 - (good + jobs) / done, 0.0) if done else 0.0
    idle = max(1 - done / able, 0.0)
    return Row(
        load=load,
        policy=policy,
        backends=plan.backends,
        goodput_ratio=ratio,
        waste_share=waste,
        idle_share=idle,
        mix_shift=math.nan if with_jobs else 1 - ratio - idle - waste,
        refused_share=tally.refused / max(tally.attempts, 1),
        left_share=tally.left_queued / max(tally.attempts, 1),
        served_share=tally.served / max(tally.served + tally.given_up, 1),
        ttft_s_p50=tally.ttft.at(0.5),
        ttft_s_p99=tally.ttft.at(0.99),
        refusal_s_p50=tally.refusal_s.at(0.5),
        refusal_s_p99=tally.refusal_s.at(0.99),
        mix_points=_mix_points(simulated),
        engine_queue_peak=simulated.waiting_peak,
        goodput_tokens_s=tally.good_tokens / tally.seconds,
        calls=tally.calls,
        attempts=tally.attempts,
        calls_per_cpu_s=tally.attempts * (1 + plan.warm_s / tally.seconds) / cpu_s if cpu_s else math.inf,
        jobs_fill_share=jobs / idle_capacity if with_jobs and idle_capacity > 0 else math.nan,
        jobs_yields_s=tally.jobs_yielded / tally.seconds if with_jobs else math.nan,
        gateways=plan.gateways,
        granted_beyond=tally.granted_beyond,
        hub_messages_s=tally.hub_messages / tally.seconds / plan.gateways if tally.hub_messages else math.nan,
        gateway_deaths=tally.gateway_deaths,
        freed_s_mean=statistics.fmean(tally.freed_s) if tally.freed_s else math.nan,
        freed_s_max=max(tally.freed_s, default=math.nan),
    )


def _mix_points(simulated: Run) -> float:
    tally = simulated.tally
    return max(
        100 * abs(tally.served_by[name] / max(tally.served, 1) - tally.offered_by[name] / max(tally.calls, 1))
        for name in ("q1", "q2", "q3", "q4", "stream")
    )


def mean(rows: Sequence[Row]) -> Row:
    """Return the mean over seeds; NaN, which means no observation, does not count."""
    values = asdict(rows[0])
    for field in fields(Row):
        seen = [getattr(row, field.name) for row in rows]
        if field.type == "float" and field.name != "load":
            known = [value for value in seen if not math.isnan(value)]
            values[field.name] = statistics.fmean(known) if known else math.nan
        elif field.name in ("engine_queue_peak", "granted_beyond"):
            values[field.name] = max(seen)
        elif field.name in ("calls", "attempts", "gateway_deaths"):
            values[field.name] = sum(seen)
    return Row(**values)
