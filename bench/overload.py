"""Overload, live and simulated: the same crowd and the same engine, once on sockets and once in virtual time.

The engine is the stand-in: 8 slots, a token every 20 ms, 20 ms to read a prompt. Clients run in separate processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import crowd, peers, targets
from bench.load import percentile
from bench.targets import Target
from hangup.config import Settings, TenantSettings
from hangup.sim import world
from hangup.sim.engine import EngineModel
from hangup.sim.policies import hangup

SLOTS, TOKEN_S, PREFILL_S = 8, 0.02, 0.02
CROWDS = 2  # processes
WARM_S, COUNTED_S = 10.0, 40.0
GIVES_UP = {"first_token_s": 5.0, "whole_s": 5.0, "spread": 0.0, "retries": 2}
MODEL = EngineModel(slots=SLOTS, prefill_tokens_s=crowd.PROMPT / PREFILL_S, chunk_tokens=0, step_s=TOKEN_S, step_per_call_s=0.0)


@dataclass(frozen=True)
class Scenario:
    name: str
    load: float = 3.0
    crowd: dict[str, Any] = field(default_factory=lambda: dict(GIVES_UP))
    arrivals: dict[str, Any] = field(default_factory=dict)
    slow_by: float = 1.0  # from the middle of the counted time
    counted_s: float = COUNTED_S


SCENARIOS = [
    Scenario("gives up after 5 s"),
    Scenario("tight deadlines", crowd={"first_token_s": 1.0, "whole_s": 3.0, "spread": 0.0, "deadline_share": 1.0}),
    Scenario("engine turns 3 x slower", load=1.0, slow_by=3.0),
    Scenario("one tenant sends 80 %", crowd={**GIVES_UP, "heavy_tenant": 0.8}),
    Scenario("flood", load=10.0),
    Scenario("burst of 5 x", load=0.9, arrivals={"burst_from_s": 20.0, "burst_s": 5.0, "burst_by": 5.0}),
]


def mean_tokens() -> float:
    return sum(crowd.LENGTHS) / 2


def capacity_tokens_s() -> float:
    """Return the engine's tokens per second with every slot always in use."""
    return SLOTS * mean_tokens() / (PREFILL_S + mean_tokens() * TOKEN_S)


def engine(**behaviour: Any) -> contextlib.AbstractContextManager[Target]:
    flags = {"slots": SLOTS, "queue": 100_000, "prefill_s": PREFILL_S, "token_s": TOKEN_S}
    return targets.standin(**{**flags, **behaviour})


async def live(scenario: Scenario, engine_port: int, target: Target, keys: bool) -> dict[str, Any]:
    until = WARM_S + scenario.counted_s
    rate = scenario.load * capacity_tokens_s() / mean_tokens()
    plan: dict[str, Any] = {"port": target.port, "rate": rate / CROWDS, "from_s": WARM_S, "until_s": until, "keys": keys}
    plan |= {"crowd": scenario.crowd, "arrivals": scenario.arrivals}
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.crowd", json.dumps({**plan, "seed": seed}), stdout=subprocess.PIPE, cwd=targets.ROOT
        )
        for seed in range(1, CROWDS + 1)
    ]
    await asyncio.sleep(WARM_S)
    targets.control_standin(engine_port, "forget_peaks")  # the engine is full by now
    before, cpu_before = targets.standin_stats(engine_port), target.cpu_s()
    await asyncio.sleep(scenario.counted_s / 2)
    if scenario.slow_by != 1:
        targets.control_standin(
            engine_port, "behave", token_s=TOKEN_S * scenario.slow_by, prefill_s=PREFILL_S * scenario.slow_by
        )
    await asyncio.sleep(scenario.counted_s / 2)
    after, cpu_s = targets.standin_stats(engine_port), target.cpu_s() - cpu_before
    told = [json.loads((await process.communicate())[0]) for process in processes]
    targets.control_standin(engine_port, "behave", token_s=TOKEN_S, prefill_s=PREFILL_S)
    good = sum(got["tokens"] for got in told)
    computed = after["tokens"] - before["tokens"]
    firsts = [s for got in told for s in got["first_token_s"]] or [float("nan")]
    refusals = [s for got in told for s in got["refusal_s"]] or [float("nan")]
    light = [row for got in told for name, row in got["by_tenant"].items() if name != "heavy"]
    return {
        "goodput": good / _available(scenario),
        "waste": max(1 - good / computed, 0.0) if computed else 0.0,
        # The same by the engine's count, for gateways that close its connection when a client leaves. It is exact: a client
        # counts the tokens of an answer when it has them all, which for some is before or after the counted time.
        "in_vain": (after["tokens_in_vain"] - before["tokens_in_vain"]) / max(computed, 1),
        "first_token_p50_s": percentile(firsts, 0.5),
        "first_token_p99_s": percentile(firsts, 0.99),
        "refusal_p99_s": percentile(refusals, 0.99),
        "engine_queue_peak": after["waiting_peak"],
        "cpu_us_per_attempt": cpu_s / max(sum(got["attempts"] for got in told), 1) * 1e6,
        "light_served": sum(row[1] for row in light) / max(sum(row[0] for row in light), 1),
    }


def _available(scenario: Scenario) -> float:
    """Return the tokens that could have been delivered within the counted time."""
    share = (1 + 1 / scenario.slow_by) / 2
    return capacity_tokens_s() * scenario.counted_s * min(scenario.load, 1.0) * share


def simulated(scenario: Scenario, settings: Settings) -> dict[str, float]:
    rate = scenario.load * capacity_tokens_s() / mean_tokens()
    model = MODEL
    if scenario.slow_by != 1:
        values = {name: getattr(MODEL, name) for name in MODEL.__slots__}
        model = EngineModel(**{**values, "slow_from_s": WARM_S + scenario.counted_s / 2, "slow_by": scenario.slow_by})
    runs = [
        world.run(
            crowd.load(seed, scenario.crowd, scenario.arrivals),
            model,
            hangup(settings),
            rate=rate,
            seconds=scenario.counted_s,
            warm_s=WARM_S,
            seed=seed,
        )
        for seed in range(1, 6)
    ]
    good = sum(run.tally.good_tokens for run in runs)
    computed = sum(run.written for run in runs)
    light = [name for run in runs for name in run.tally.offered_by if name.startswith("light")]
    offered = sum(run.tally.offered_by[name] for run in runs for name in set(light))
    served = sum(run.tally.served_by[name] for run in runs for name in set(light))
    return {
        "goodput": good / len(runs) / _available(scenario),
        "waste": max(1 - good / computed, 0.0),
        "light_served": served / max(offered, 1),
    }


def _tenants() -> tuple[TenantSettings, ...]:
    return tuple(TenantSettings(name=name) for name in ["heavy", *(f"light-{at}" for at in range(9))])


@contextlib.contextmanager
def _config() -> Iterator[Path]:
    """Write a configuration with the tenants' keys: the gateway must know whose call it is."""
    from hashlib import sha256

    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        for tenant in _tenants():
            digest = sha256(f"key-of-{tenant.name}".encode()).hexdigest()
            file.write(f'[[tenant]]\nname = "{tenant.name}"\nkey_sha256 = ["{digest}"]\n')
        file.flush()
        yield Path(file.name)


async def run() -> dict[str, Any]:
    results: dict[str, Any] = {}
    print(f"  engine: {SLOTS} slots, {capacity_tokens_s():.0f} tokens/s; goodput as a share of that, waste of what it computed")
    for scenario in SCENARIOS:
        rows = results[scenario.name] = {}
        keys = "heavy_tenant" in scenario.crowd
        print(f"  {scenario.name}, {scenario.load:g} x")
        for name in ["direct", "haproxy", "hangup", "hangup --slots"] if scenario is SCENARIOS[0] else ["hangup"]:
            with contextlib.ExitStack() as stack:
                backend = stack.enter_context(engine())
                flags = ["--slots", str(SLOTS)] if name.endswith("--slots") else []
                if keys:
                    flags += ["--config", str(stack.enter_context(_config()))]
                target = backend
                if name == "haproxy":
                    target = stack.enter_context(peers.haproxy(backend.port, slots=SLOTS))
                elif name != "direct":
                    target = stack.enter_context(targets.hangup(backend.port, *flags))
                rows[name] = await live(scenario, backend.port, target, keys)
                _show(name, rows[name])
        settings = Settings(tenant=_tenants() if keys else ())
        rows["simulated"] = simulated(scenario, settings)
        _show("simulated", rows["simulated"])
    return results


def _show(name: str, row: dict[str, Any]) -> None:
    shown = f"    {name:<15} goodput {row['goodput']:.3f}  waste {row['waste']:.3f}"
    if "first_token_p50_s" in row:
        shown += f"  first token {row['first_token_p50_s']:.2f}/{row['first_token_p99_s']:.2f} s"
        shown += f"  refusals p99 {row['refusal_p99_s'] * 1e3:.0f} ms  engine queue {row['engine_queue_peak']}"
        shown += f"  {row['cpu_us_per_attempt']:.0f} us CPU per attempt"
    if row.get("light_served"):
        shown += f"  others served {row['light_served']:.3f}"
    print(shown, flush=True)
