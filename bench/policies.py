"""The simulator's figures: policies side by side on real lengths, four hard scenarios, its speed, and the cost of admission.

Nothing here is live; `overload.py` compares the simulator with sockets.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hangup.config import LimitSettings, Settings
from hangup.core.admission import Admission, BackendLoad, Ticket
from hangup.sim import policies, report, traces, world
from hangup.sim.engine import EngineModel
from hangup.sim.load import Arrivals, ClientHabits, Load
from hangup.sim.study import Plan, Row, mean, one, row, study

TRACES = Path(__file__).parent / "traces"
LOADS = [1, 1.5, 2, 3, 5, 10]
SEEDS = [1, 2, 3, 4, 5]
NAMES = ["hangup", "bounded", "codel", "router", "direct"]
# Azure's conversations on one engine; Mooncake's long prompts on four, which prefill elsewhere, as its authors do.
AZURE = ("azure_conv_2023.csv", EngineModel(), 1)
MOONCAKE = (
    "mooncake_conversation.jsonl",
    EngineModel(slots=128, kv_tokens=4_000_000, prefill_tokens_s=60_000, chunk_tokens=0, step_per_call_s=0.00005),
    4,
)


def run() -> dict[str, Any]:
    results: dict[str, Any] = {"cost": {depth: _cost(depth) for depth in (10, 10_000)}}
    results["speed"] = {backends: _speed(backends) for backends in (1, 1000)}
    for file, model, backends in (AZURE, MOONCAKE):
        print(f"  {file}, {backends} engine(s), {len(SEEDS)} seeds", flush=True)
        plan = Plan(
            load=Load(traces.read(TRACES / file)),
            settings=Settings(),
            model=model,
            loads=LOADS,
            policies=NAMES,
            backends=backends,
            calls=4000 * backends,
            seeds=SEEDS,
        )
        rows = list(study(plan))
        print(_indented(report.table(rows)), flush=True)
        results[file] = [_facts(found) for found in rows]
    results["scenarios"] = _scenarios()
    results["neighbours"] = _neighbours()
    return results


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


def _facts(found: Row) -> dict[str, float | str]:
    return {"policy": found.policy, "load": found.load, "goodput": found.goodput_ratio, "waste": found.waste_share}


def _scenarios() -> dict[str, Any]:
    requests = traces.read(TRACES / AZURE[0])
    model = AZURE[1]
    capacity = world.capacity(Load(requests), model)
    rows: dict[str, Any] = {}

    def several(name: str, load: Load, at: float, policy: str, engine: EngineModel = model) -> list[world.Run]:
        rate = at * capacity.output_s / load.mean_output
        make = policies.hangup(Settings()) if policy == "hangup" else policies.BASELINES[policy][1]
        return [world.run(load, engine, make, rate=rate, seconds=500, warm_s=100, seed=seed) for seed in SEEDS]

    def plan(load: Load) -> Plan:
        return Plan(load=load, settings=Settings(), model=model, loads=[])

    tight = Load(requests, ClientHabits(first_token_s=3, whole_s=20, spread=0, deadline_share=1))
    tenants = Load(requests, ClientHabits(heavy_tenant=0.8))
    burst = Load(requests, arrivals=Arrivals(burst_from_s=200, burst_s=20, burst_by=5))
    slow = replace(model, slow_from_s=100, slow_by=3.0)
    for policy in ("hangup", "bounded", "codel", "router"):
        made = mean([row(plan(tight), capacity, 5, policy, run, 0) for run in several("tight", tight, 5, policy)])
        slowed = several("slow", Load(requests, ClientHabits(deadline_share=1)), 1, policy, slow)
        useful = mean([row(plan(tight), capacity, 1, policy, run, 0) for run in slowed])
        rows[policy] = {
            "tight deadlines at 5 x, goodput": made.goodput_ratio,
            "engine turns 3 x slower (deadlines told), useful": 1 - useful.waste_share,
            "others beside a tenant with 80 % of 3 x, served": _light(several("tenants", tenants, 3, policy)),
            "30 s after a burst of 5 x, goodput as before": _after(several("burst", burst, 0.9, policy)),
        }
        print("    " + policy + ": " + ", ".join(f"{name} {value:.3f}" for name, value in rows[policy].items()), flush=True)
    return rows


def _neighbours() -> dict[str, Any]:
    """Simulate healthy and full engines with neighbours: prompts read in parallel, slow readers, embeddings and images beside
    chat.
    """
    requests = traces.read(TRACES / AZURE[0])
    wide = replace(AZURE[1], slots=100_000, kv_tokens=10**9, prefill_tokens_s=1_200.0, parallel=True, step_per_call_s=0.0)
    cases = {
        "prompts read in parallel, no limit (first token 1 s)": (Load(requests), wide, [20.0]),
        "the same, half of the calls with an image": (Load(requests, ClientHabits(images=0.5, first_token_s=60)), wide, [20.0]),
        "prompts read in parallel, 64 slots": (Load(requests), replace(wide, slots=64), [0.9, 1, 3, 10]),
        "a fifth of the streams read five times too slowly": (Load(requests, ClientHabits(slow_readers=0.2)), AZURE[1], [0.5]),
        "a tenth of the calls with an image": (Load(requests, ClientHabits(images=0.1)), AZURE[1], [0.9, 1, 3, 10]),
        "half of the calls are embeddings": (Load(requests, ClientHabits(embeddings=0.5)), AZURE[1], [0.9, 1, 3, 10]),
    }
    found: dict[str, Any] = {}
    for name, (load, model, loads) in cases.items():
        if model.slots > 1000:  # it has no capacity limit, so the load is given in calls per second
            made = policies.hangup(Settings())
            runs = [world.run(load, model, made, rate=loads[0], seconds=60, warm_s=0, seed=seed) for seed in SEEDS]
            served = sum(run.tally.served for run in runs) / sum(run.tally.served + run.tally.given_up for run in runs)
            refused = sum(run.tally.refused for run in runs)
            found[name] = {"served": served, "refused": refused}
            print(f"    {name}: {loads[0]:g} calls/s from a cold start, served {served:.3f}, refused {refused}", flush=True)
            continue
        plan = Plan(load=load, settings=Settings(), model=model, loads=loads, policies=["hangup"], calls=4000, seeds=SEEDS)
        rows = list(study(plan))
        found[name] = [_facts(row) | {"served": row.served_share} for row in rows]
        told = ", ".join(f"{r.load:g} x {r.goodput_ratio:.3f} ({r.waste_share:.3f}; served {r.served_share:.3f})" for r in rows)
        print(f"    {name}: goodput (waste) {told}", flush=True)
    return found


def _light(runs: list[world.Run]) -> float:
    shares = []
    for made in runs:
        names = [name for name in made.tally.offered_by if name.startswith("light")]
        shares.append(sum(made.tally.served_by[n] for n in names) / sum(made.tally.offered_by[n] for n in names))
    return statistics.fmean(shares)


def _after(runs: list[world.Run]) -> float:
    shares = []
    for made in runs:
        good = made.tally.good_by_time
        before = sum(good[at] for at in range(10, 20)) / 10
        shares.append(sum(good[at] for at in range(25, 55)) / 30 / before)
    return statistics.fmean(shares)


def _speed(backends: int) -> dict[str, float]:
    """Return the calls that the simulator processes per second of CPU time."""
    found = {}
    load = Load(traces.read(TRACES / AZURE[0]))
    capacity = world.capacity(load, AZURE[1])
    for at in (0.9, 3.0):
        plan = Plan(load=load, settings=Settings(), model=AZURE[1], loads=[at], backends=backends, calls=40_000, warm_s=20)
        found[f"{at:g}x"] = one(plan, capacity, at, "hangup", 1).calls_per_cpu_s
    print(
        f"    {backends} engines: " + ", ".join(f"{n:.0f} calls per CPU second at {at}" for at, n in found.items()), flush=True
    )
    return found


def _cost(depth: int, calls: int = 20_000) -> float:
    """Return the microseconds of CPU that admission takes for one call, from arrival to end, with `depth` others waiting."""
    limits = LimitSettings(queue_depth_max=depth + 10, queue_s=1e9)
    admission: Admission[Any] = Admission(limits, [BackendLoad("one", slots=8)], random.random)
    names = [f"tenant-{at}" for at in range(20)]
    now, running = 0.0, []
    for at in range(depth + 8):
        running += [action.ticket for action in admission.arrive(Ticket(at, prompt=100, output_max=100), names[at % 20], now)]
    began = time.process_time()
    for at in range(calls):
        now += 0.001
        admission.arrive(Ticket(at, prompt=100, output_max=100), names[at % 20], now)
        ticket = running.pop(0)
        admission.first_token(ticket, now)
        running += [action.ticket for action in admission.end(ticket, now, 50, 100, completed=True)]
    each = (time.process_time() - began) / calls * 1e6
    print(f"    admission: {each:.1f} us CPU per call with {depth} waiting", flush=True)
    return each
