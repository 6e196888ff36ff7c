"""First, do no harm: healthy traffic, direct and through hangup with no settings, side by side in one run.

Each side has its own engine of the same kind, so that both are measured at the same time on the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench import callers, load, neighbours, overload, targets
from bench.bars import Bar, Row, ratio, verdict
from bench.callers import Outcome, Sums
from bench.targets import Pair, Target, pair

KINDS = {"unknown engine": "openai", "like vLLM": "vllm"}
ROOMY = {"slots": 8192, "prefill_s": 1.0, "token_s": 0.02}  # room for thousands, a constant first-token time of 1 s
TOKENS = 8  # per answer: few, because only the first one matters here
RATE, STEADY_S, SETTLED_S = 40.0, 25.0, 5.0
BURSTS = (200, 200, 200, 200, 1000)
PLACES, HOSTED_S = 100, 12.0
FULL_S = 30.0  # after 10 s in which the engine fills


async def steady() -> list[Row]:
    """Run 40 calls/s from a cold start: all must be served, as soon as without hangup."""
    with contextlib.ExitStack() as stack:
        pairs = {name: stack.enter_context(pair(like=like, **ROOMY)) for name, like in KINDS.items()}
        data = callers.encoded(callers.body(TOKENS))
        ports = [port for made in pairs.values() for port in (made.direct.port, made.gateway.port)]
        runs = await asyncio.gather(*(callers.steady(port, data, rate=RATE, seconds=STEADY_S) for port in ports))
    return [_steady_row(name, runs[2 * at], runs[2 * at + 1]) for at, name in enumerate(pairs)]


def _steady_row(name: str, direct: list[Outcome], through: list[Outcome]) -> Row:
    def later(outcomes: list[Outcome]) -> Sums:
        return callers.sums(outcome for outcome in outcomes if outcome.began_s >= SETTLED_S)

    base, got = callers.sums(direct), callers.sums(through)
    late_base, late_got = later(direct), later(through)
    windows = range(0, int(STEADY_S), 5)
    return Row(
        f"{RATE:g} calls/s, cold, {name}",
        [
            Bar("served", got.share, 1.0),
            Bar("first token p99 / direct", ratio(got.first(0.99), base.first(0.99)), 1.25, at_most=True),
            Bar("after 5 s", ratio(late_got.first(0.99), late_base.first(0.99)), 1.05, at_most=True),
        ],
        {
            "calls": got.calls,
            "served by 5 s": [callers.sums(o for o in through if at <= o.began_s < at + 5).served for at in windows],
            "served direct": base.served,
            "direct p50 s": base.first(0.5),
            "direct p99 s": base.first(0.99),
            "through p50 s": got.first(0.5),
            "through p99 s": got.first(0.99),
            "statuses": got.statuses,
        },
    )


async def bursts() -> list[Row]:
    """Send four bursts of 200 and one of 1,000, direct and through hangup in turn; then the 1,000 again from a cold start."""
    rows = []
    data = callers.encoded(callers.body(TOKENS))
    for name, like in KINDS.items():
        with pair(like=like, **ROOMY) as made:
            rows += [await _burst(made, name, at, count, data) for at, count in enumerate(BURSTS)]
        with pair(like=like, **ROOMY) as made:
            rows.append(await _burst(made, name, 0, max(BURSTS), data))
    return rows


async def _burst(made: Pair, name: str, at: int, count: int, data: bytes) -> Row:
    base = callers.sums(await callers.burst(made.direct.port, data, count))
    got = callers.sums(await callers.burst(made.gateway.port, data, count))
    known = at > 0 and count <= BURSTS[0]  # the first burst of its size may meet a lower limit
    bars = [
        Bar("served", got.share, 1.0),
        Bar("first token p90 / direct", ratio(got.first(0.9), base.first(0.9)), 1.1 if known else 2.5, at_most=True),
    ]
    figures = {"direct p90 s": base.first(0.9), "through p90 s": got.first(0.9), "statuses": got.statuses}
    return Row(f"burst {at + 1} of {count}, {name}" + ("" if at else ", cold"), bars, figures)


async def hosted() -> list[Row]:
    """Call a hosted API that allows 100 calls at once and answers 429 beyond; the bound is what 100 clients get from it
    directly.
    """
    flat = {"like": "openai", "slots": PLACES, "queue": 0, "full_status": 429, "prefill_s": 0.25, "token_s": 0.05}
    data = callers.encoded(callers.body(20))
    rows = []
    for clients, after in ((200, 0.0), (150, 1.0)):
        with contextlib.ExitStack() as stack:
            made = stack.enter_context(pair(retry_after_s=after, **flat))
            alone = stack.enter_context(targets.standin(**flat))
            runs = [(alone, PLACES), (made.direct, clients), (made.gateway, clients)]
            bound, direct, through = await asyncio.gather(
                *(callers.closed(t.port, data, clients=count, seconds=HOSTED_S) for t, count in runs)
            )
            engine = targets.standin_stats(made.behind.port)
        rows.append(_hosted_row(clients, after, [bound, direct, through], engine))
    return rows


def _hosted_row(clients: int, after: float, runs: list[list[Outcome]], engine: dict[str, int]) -> Row:
    def done(outcomes: list[Outcome]) -> int:
        return sum(o.served and o.began_s + o.total_s <= HOSTED_S for o in outcomes)

    bound, direct, through = runs
    statuses, direct_statuses = callers.sums(through).statuses, callers.sums(direct).statuses
    told = "with Retry-After" if after else "without Retry-After"
    return Row(
        f"hosted, {PLACES} places, {clients} clients, {told}",
        [
            Bar("429 seen by clients", statuses.get(429, 0), 0, at_most=True),
            Bar("served", callers.sums(through).share, 1.0),
            Bar("goodput / 100 places", ratio(done(through), done(bound)), 0.95),
        ],
        {
            "direct goodput": ratio(done(direct), done(bound)),
            "direct 429s": direct_statuses.get(429, 0),
            "refused by the API": engine["refused"],
            "statuses": statuses,
        },
    )


async def small() -> list[Row]:
    """Run 64 clients with small whole answers, an engine that takes no time, and a gateway configured with 1,000 slots."""
    kinds = {"answered as a whole": {"plain": True}, "assembled from a stream": {"instant": True}}
    rows = []
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(targets.engine())
        plain = stack.enter_context(targets.hangup(engine.port))
        told = stack.enter_context(targets.hangup(engine.port, "--slots", "1000"))
        for name, more in kinds.items():
            data = load.request("/v1/chat/completions", {**load.CHAT, **more})
            rates: dict[str, list[float]] = {"plain": [], "told": [], "direct": []}
            for _ in range(2):
                for kind, target in (("plain", plain), ("told", told), ("direct", engine)):
                    rates[kind].append(await _calls_per_s(target, data))
            rate = {kind: sum(values) / len(values) for kind, values in rates.items()}
            bars = [Bar("calls/s / --slots 1000", ratio(rate["plain"], rate["told"]), 0.9)]
            rows.append(Row(f"64 clients, small answers, {name}", bars, {f"{kind} calls/s": rate[kind] for kind in rates}))
    return rows


async def _calls_per_s(target: Target, data: bytes, seconds: float = 1.5) -> float:
    counter = [0]
    clients = await load.open_requesters(target.port, 64, counter, data)
    await asyncio.sleep(0.5)
    before, began = counter[0], time.monotonic()
    await asyncio.sleep(seconds)
    rate = (counter[0] - before) / (time.monotonic() - began)
    for client in clients:
        client.transport.abort()
    await asyncio.sleep(0.2)
    return rate


async def full() -> list[Row]:
    """Check that overload is handled as before: 8 slots at 3 x and 10 x, clients that give up after 5 s; streams and whole
    answers, for an unknown engine and one like vLLM.
    """
    crowds = [("unknown engine", 1.0), ("unknown engine", 0.0), ("like vLLM", 1.0)]  # engine, share of streams
    rows = []
    for times in (3.0, 10.0):
        with contextlib.ExitStack() as stack:
            runs = []
            for kind, share in crowds:
                engine = stack.enter_context(overload.engine(like=KINDS[kind]))
                gateway = stack.enter_context(targets.hangup(engine.port))
                crowd = {**overload.GIVES_UP, "stream_share": share}
                scenario = overload.Scenario("", load=times, crowd=crowd, counted_s=FULL_S)
                runs.append(overload.live(scenario, engine.port, gateway, keys=False))
            for (kind, share), got in zip(crowds, await asyncio.gather(*runs), strict=True):
                what = "streams" if share else "whole answers"
                rows.append(_full_row(f"8 slots, {times:g} x, {what}, {kind}", got))
    return rows


def _full_row(name: str, got: dict[str, Any]) -> Row:
    bars = [
        Bar("goodput", got["goodput"], 0.97),
        Bar("waste", got["in_vain"], 0.01, at_most=True),
        Bar("engine's queue", got["engine_queue_peak"], 3, at_most=True),
    ]
    names = ("first_token_p50_s", "first_token_p99_s", "refusal_p99_s", "cpu_us_per_attempt")
    return Row(name, bars, {name: got[name] for name in names})


PARTS: dict[str, Callable[[], Awaitable[list[Row]]]] = {
    "steady": steady,
    "bursts": bursts,
    "hosted": hosted,
    "small": small,
    "full": full,
    "neighbours": neighbours.run,
}


async def run(parts: list[str]) -> dict[str, Any]:
    found: list[Row] = []
    for name in parts or PARTS:
        began = time.monotonic()
        print(f"  -- {name}", flush=True)
        rows = await PARTS[name]()
        for row in rows:
            row.show()
        found += rows
        print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
    print("  " + verdict(found), flush=True)
    return {row.name: row.as_json() for row in found}
