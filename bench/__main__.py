"""make bench: measures hangup beside nginx (and others) and prints one table per question.

usage: python -m bench [SUITE …]     (default: all)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import resource
import time
from pathlib import Path
from typing import Any

import uvloop

from bench import (
    call_cost,
    dashboard,
    departures,
    embedded,
    growth,
    healthy,
    jobs,
    large,
    library,
    overload,
    peers,
    policies,
    previous,
    probe,
    reaper,
    seeing,
    start,
    suites,
    targets,
)
from bench.load import CHAT, percentile
from bench.targets import Target

SUITES = [
    "calls",
    "healthy",
    "streams",
    "requests",
    "one-client",
    "first-byte",
    "hang-up",
    "idle",
    "engine",
    "peers",
    "overload",
    "policies",
    "reaper",
    "seeing",
    "jobs",
    "start",
    "growth",
    "departures",
    "large",
    "library",
]
APART = ["dashboard", "jobs-postgresql", "probe"]  # they need a browser, a PostgreSQL server and ten minutes

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "passed through": ("/v1/embeddings", {"model": "bench-model", "input": "hello there"}),
    "chat, the engine answers as a whole": ("/v1/chat/completions", {**CHAT, "plain": True}),
    "chat, assembled from a stream of 8 tokens": ("/v1/chat/completions", {**CHAT, "instant": True}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", choices=[*SUITES, *APART, []], help="which ones")
    parser.add_argument("--rounds", type=int, default=6, help="windows per target (default: 6)")
    parser.add_argument(
        "--parts", nargs="+", choices=list(healthy.PARTS), default=[], help="of `healthy` (default: all)", metavar="PART"
    )
    parser.add_argument("--keep", action="store_true", help="print these figures beside the next ones (bench/previous.json)")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        hard = max(hard, 65536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M"), "machine": platform.platform(), "cpus": _cpus()}
    for name in arguments.suites or SUITES:
        print(f"== {name}", flush=True)
        results[name] = uvloop.run(_run(name, arguments.rounds, arguments.parts))
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    (out / "latest.json").write_text(json.dumps(results, indent=2))
    print(f"written to {out / 'latest.json'}")
    if arguments.keep:
        previous.keep(results)
        print(f"kept in {previous.FILE}")


def _cpus() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}"


async def _run(name: str, rounds: int, parts: list[str]) -> Any:
    if name == "calls":
        return await call_cost.run()
    if name == "healthy":
        return await healthy.run(parts)
    if name == "library":
        return await library.run()
    if name == "idle":
        result = await suites.idle_streams()
        print("  {streams} streams: {kb_per_stream:.1f} KB each, loop never later than {worst_lag_s:g} s".format(**result))
        print("  all of them leaving in one instant: {worst_lag_s_when_all_leave_at_once:g} s".format(**result))
        return result
    if name == "large":
        return await large.run()
    if name == "departures":
        return await departures.run()
    if name == "growth":
        return await growth.run()
    if name == "start":
        return start.run(rounds)
    if name == "engine":
        return embedded.run(rounds)
    if name == "peers":
        return await peers.run()
    if name == "policies":
        return policies.run()
    if name == "reaper":
        return await reaper.run()
    if name == "probe":
        return await probe.run(rounds)
    if name == "dashboard":
        return await dashboard.run()
    if name == "jobs":
        return await jobs.run()
    if name == "jobs-postgresql":
        return await jobs.run_on_postgresql()
    if name == "seeing":
        return await seeing.run(rounds)
    if name == "overload":
        return await overload.run()
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(targets.engine())
        nginx = stack.enter_context(targets.nginx(engine.port))
        hangup = stack.enter_context(targets.hangup(engine.port))
        match name:
            case "streams":
                return _costs(await suites.streams([nginx, hangup], rounds=rounds), "chunk", "streams")
            case "requests" | "one-client":
                return {label: await _requests(name, label, engine, nginx, hangup, rounds) for label in REQUESTS}
            case "first-byte":
                return _beside_direct(await suites.first_byte([engine, nginx, hangup]))
            case "hang-up":
                return {t.name: _spread(await suites.hang_up(engine, t), t.name) for t in (nginx, hangup)}
    raise AssertionError(name)


async def _requests(name: str, label: str, engine: Target, nginx: Target, hangup: Target, rounds: int) -> dict[str, Any]:
    """Measure small requests of one kind: from many clients, or from one client at a time."""
    path, body = REQUESTS[label]
    print(f"  {label}: POST {path}")
    if name == "requests":
        return _costs(await suites.requests([nginx, hangup], path, body, rounds=rounds), "request", name, label)
    costs, times = await suites.one_client([engine, nginx, hangup], path, body, rounds=rounds)
    return _costs(costs[1:], "request", name, label) | {"times": _beside_direct(times)}


def _costs(costs: list[suites.Cost], unit: str, *names: str) -> dict[str, Any]:
    """Print a table of costs, beside those that were kept under `names`, and return it."""
    base = costs[0]
    for cost in costs:
        x_nginx = cost.us / base.us
        before = previous.beside(x_nginx, *names, cost.name, "x_nginx") if cost is not base else ""
        row = f"{cost.name:<8} {cost.us:7.2f} us CPU per {unit}   {x_nginx:5.2f} x nginx {before:20}"
        print(f"  {row} {cost.rate:9.0f} {unit}s/s")
    return {c.name: {"us": round(c.us, 2), "x_nginx": round(c.us / base.us, 3), "per_s": round(c.rate)} for c in costs}


def _spread(values: list[float], name: str) -> dict[str, float]:
    row = {"p50_ms": percentile(values, 0.5) * 1e3, "p99_ms": percentile(values, 0.99) * 1e3, "count": len(values)}
    print(f"  {name:<8} p50 {row['p50_ms']:7.2f} ms   p99 {row['p99_ms']:7.2f} ms   of {len(values)}")
    return row


def _beside_direct(times: dict[str, list[float]]) -> dict[str, Any]:
    rows = {name: _spread(values, name) for name, values in times.items()}
    for name in ("nginx", "hangup"):
        added = {p: rows[name][p] - rows["direct"][p] for p in ("p50_ms", "p99_ms")}
        print(f"  {name:<8} adds p50 {added['p50_ms']:.2f} ms, p99 {added['p99_ms']:.2f} ms")
        rows[name + "_added"] = added
    return rows


if __name__ == "__main__":
    main()
