"""Gateways that share an engine through Redis: goodput, over-admission, deaths, an outage of the store, and hang-ups.

usage: PYTHONPATH=tests python -m bench.hosts {overload,learned,kill,outage,hangups,zombies}
                                              [--gateways N] [--workers N] [--runs N] [--seconds S]

    overload   3 × the engine's capacity for S seconds: goodput, waste, most calls in the engine
    learned    the same with slots that nobody knows, after ten seconds in which the gateways learn them; --workers N: in one
               gateway with so many workers
    kill       N × kill -9 of a gateway with 50 streams: when its slots are in use again; 50 runs take three minutes
    outage     the store is stopped for S seconds, and comes back empty
    hangups    N hang-ups at random moments: when the gateways' counts are the engine's, and whether it was suspected
    zombies    the same, and the engine runs on with 20 or so of them: how many of those are found

Everything runs on one machine. Counts (calls, peaks, aborts) hold whatever else the machine does; times do not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from support.processes import Gateway, StandIn
from support.redis_server import RedisServer

SLOTS, TOKENS, TOKEN_S = 8, 50, 0.02
CALLS_PER_S = SLOTS / (TOKENS * TOKEN_S + 0.05)  # what the engine can serve


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def world(
    gateways: int, slots: int = SLOTS, settings: dict[str, Any] | None = None, **engine: Any
) -> Iterator[tuple[StandIn, RedisServer, list[Gateway]]]:
    behaviour = {"slots": 4 * slots, "prefill_s": 0.05, "token_s": TOKEN_S, "answer_tokens": TOKENS} | engine
    with contextlib.ExitStack() as stack:
        standin = stack.enter_context(StandIn(**behaviour))
        store = stack.enter_context(RedisServer())
        shared: dict[str, Any] = ({"shared_state": store.url} if gateways > 1 else {}) | (settings or {})
        found = [stack.enter_context(Gateway(standin.url, slots=slots, **shared)) for _ in range(gateways)]
        yield standin, store, found


async def call(gateway: Gateway, tokens: int, patience_s: float) -> str:
    """Make a streaming call; a client that has no first token by its patience hangs up."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": tokens}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    try:
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        async with asyncio.timeout(patience_s):
            status = (await reader.readline()).split(b" ")[1].decode()
            await reader.readuntil(b"data:" if status == "200" else b"\r\n\r\n")
        rest = await reader.read(-1)
        return status if status != "200" or b"[DONE]" in rest else "cut"
    except TimeoutError:
        return "left"
    except (OSError, asyncio.IncompleteReadError, IndexError) as error:
        return type(error).__name__
    finally:
        writer.close()


async def offer(gateways: list[Gateway], rate: float, seconds: float, patience_s: float = 3.0) -> Counter[str]:
    """Start calls at random times, `rate` a second on average, spread over the gateways."""
    outcomes: Counter[str] = Counter()
    tasks: set[asyncio.Task[None]] = set()

    async def one(gateway: Gateway) -> None:
        outcomes[await call(gateway, TOKENS, patience_s)] += 1

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.sleep(random.expovariate(rate))
        task = asyncio.create_task(one(random.choice(gateways)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return outcomes


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> float:
    """Wait for something; return how long it took."""
    at = time.monotonic()
    while not await asyncio.to_thread(condition) and time.monotonic() < at + within_s:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return time.monotonic() - at


async def stop(tasks: list[asyncio.Task[str]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def overload(gateways: int, seconds: float) -> None:
    with world(gateways) as (engine, _, found):
        outcomes = await offer(found, 3 * CALLS_PER_S, seconds)
        stats = engine.stats()
        wasted = stats["tokens"] - outcomes["200"] * TOKENS
        print(
            f"{gateways} gateways at 3x for {seconds:g} s: {outcomes['200'] / seconds:.2f} calls/s of {CALLS_PER_S:.2f},"
            f" waste {wasted / max(stats['tokens'], 1):.3f}, peak {stats['running_peak']} of {SLOTS}; {dict(outcomes)}"
        )


async def learned(gateways: int, workers: int, seconds: float) -> None:
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(StandIn(slots=SLOTS, prefill_s=0.05, token_s=TOKEN_S, answer_tokens=TOKENS))
        store = stack.enter_context(RedisServer())
        shared = {"shared_state": store.url} if gateways > 1 else {"workers": workers} if workers > 1 else {}
        found = [stack.enter_context(Gateway(engine.url, **shared)) for _ in range(gateways)]
        offering = asyncio.create_task(offer(found, 3 * CALLS_PER_S, 10 + seconds))
        await asyncio.sleep(10)
        await asyncio.to_thread(engine.forget_peaks)
        outcomes = await offering
        stats = engine.stats()
        tokens = stats["tokens"]
        who = f"{workers} workers" if workers > 1 else f"{gateways} gateways"
        rate = outcomes["200"] / (10 + seconds)
        print(
            f"{who} at 3x for {seconds:g} s, slots learned: {rate:.2f} calls/s of {CALLS_PER_S:.2f},"
            f" waste {(tokens - outcomes['200'] * TOKENS) / max(tokens, 1):.3f}, at most {stats['waiting_peak']} calls in the"
            f" engine's queue; {dict(outcomes)}"
        )


async def kill(gateways: int, runs: int) -> None:
    """Kill a gateway with 50 streams, on an engine that does not notice when a connection ends, and replace it."""
    freed, stopped, verified, innocent = list[float](), list[float](), list[float | None](), 0
    with contextlib.ExitStack() as stack:
        engine, store, found = stack.enter_context(world(gateways, slots=100, answer_tokens=30_000, deaf_to="stream"))
        for number in range(runs):
            await until(lambda: all(_is_normal(g, gateways) and not _in_flight(g) for g in found))
            before = engine.stats()["aborted"]
            victim = found[number % gateways]  # the leader and others in turn
            others = [gateway for gateway in found if gateway is not victim]
            streams = [asyncio.create_task(call(victim, 30_000, 30)) for _ in range(50)]
            streams += [asyncio.create_task(call(others[0], 30_000, 30)) for _ in range(20)]
            await until(lambda v=victim: engine.stats()["running"] == 70 and _noted_calls(store, v) == 50)  # type: ignore[misc]
            proofs = sum(map(_verified, others))
            at = time.monotonic()
            victim.popen.send_signal(signal.SIGKILL)
            more = [asyncio.create_task(call(random.choice(others), 30_000, 30)) for _ in range(80)]
            await until(lambda b=before: engine.stats()["aborted"] >= b + 50)  # type: ignore[misc]
            stopped.append(time.monotonic() - at)
            await until(lambda: engine.stats()["running"] >= 100)
            freed.append(time.monotonic() - at)
            await until(lambda o=others, p=proofs: sum(map(_verified, o)) >= p + 50, 10)  # type: ignore[misc]
            verified.append(time.monotonic() - at if sum(map(_verified, others)) >= proofs + 50 else None)
            innocent += engine.stats()["aborted"] - before - 50
            progress(f"{number + 1}: aborted {stopped[-1]:.2f} s, in use {freed[-1]:.2f} s, verified {verified[-1]}")
            await stop([*streams, *more])
            found[number % gateways] = stack.enter_context(Gateway(engine.url, slots=100, shared_state=store.url))
    proved = [seconds for seconds in verified if seconds is not None]
    print(
        f"{runs} × kill -9 with 50 streams, {gateways} gateways: all aborted after {max(stopped):.2f} s at most, places free"
        f" and used after {max(freed):.2f} s at most (median {sorted(freed)[runs // 2]:.2f}; {sum(s < 2 for s in freed)} of"
        f" {runs} within 2 s), stops of all 50 verified in {len(proved)} runs, after {max(proved, default=0):.2f} s at most,"
        f" innocent aborts: {innocent}"
    )


def _in_flight(gateway: Gateway) -> int:
    """Return how many places of the engine a gateway takes for used."""
    return round(sum(n for name, n in gateway.metrics().items() if name.startswith("hangup_backend_in_flight{")))


def _verified(gateway: Gateway) -> int:
    found = gateway.metrics().items()
    return round(sum(n for name, n in found if name.startswith("hangup_releases_total{") and 'result="verified"' in name))


def _noted_calls(store: RedisServer, gateway: Gateway) -> int:
    """Return how many calls of a gateway the store knows."""
    name = next(row["gateway"] for row in gateway.log() if row.get("event") == "shared_state_found")
    return int(store.command("HLEN", f"hangup:{{hangup}}:calls:{name}")[1:]) - 1  # one field marks the hash


async def outage(gateways: int, seconds: float) -> None:
    """Stop the store under load; it comes back empty."""
    with world(gateways) as (engine, store, found):
        load = asyncio.create_task(offer(found, 0.7 * CALLS_PER_S, seconds + 20, patience_s=30))
        await asyncio.sleep(8)
        store.stop()
        await asyncio.sleep(seconds)
        store.start()
        back = await until(lambda: all(_is_normal(g, gateways) for g in found))
        outcomes = await load
        print(
            f"store stopped for {seconds:g} s, {gateways} gateways: {dict(outcomes)}, peak"
            f" {engine.stats()['running_peak']} of {SLOTS}, normal again {back:.2f} s after its return"
        )


def _is_normal(gateway: Gateway, gateways: int) -> bool:
    metrics = gateway.metrics()
    return not metrics["hangup_shared_state_failing"] and metrics["hangup_gateways"] == gateways


async def hang_up(found: list[Gateway], count: int) -> None:
    """Hang up so many times, at random moments."""
    left = count

    async def clients() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            if left % 1000 == 0:
                progress(f"{left} hang-ups to go")
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(random.expovariate(5)):
                    await call(random.choice(found), 30_000, 60)

    await asyncio.gather(*(clients() for _ in range(48)))


def _named(found: list[Gateway], event: str) -> list[dict[str, Any]]:
    return [row for gateway in found for row in gateway.log() if row.get("event") == event]


async def hangups(gateways: int, count: int) -> None:
    """Hang up at random points; then the gateways' counts must be the engine's."""
    with world(gateways, slots=32, answer_tokens=30_000) as (engine, _, found):
        await hang_up(found, count)
        at = time.monotonic()
        await until(lambda: engine.stats()["running"] + engine.stats()["waiting"] == 0)
        idle = time.monotonic() - at
        counts = {0.0: sum(map(_in_flight, found))}
        while counts[max(counts)] and time.monotonic() < at + 60:
            await asyncio.sleep(0.05)
            counts[round(time.monotonic() - at, 1)] = sum(
                await asyncio.gather(*(asyncio.to_thread(_in_flight, g) for g in found))
            )
        equal = time.monotonic() - at
        tasks = [asyncio.create_task(call(found[0], 30_000, 60)) for _ in range(32)]
        again = equal + await until(lambda: engine.stats()["running"] == 32)
        running = engine.stats()["running"]
        await stop(tasks)
        suspected = sum(len(_named(found, event)) for event in ("zombie_found", "orphans_found", "ladder_step_taken"))
        progress(f"places that the gateways took for used, by seconds: {counts}")
        print(
            f"{count} hang-ups over {gateways} gateways: engine idle {idle:.2f} s after the last one, the gateways' counts 0"
            f" after {equal:.2f} s, {running} of 32 slots used from one gateway after {again:.2f} s, peak"
            f" {engine.stats()['running_peak']}, verdicts against the engine: {suspected}"
        )


async def zombies(gateways: int, count: int, planted: int = 20) -> None:
    """Hang up at random points on an engine that runs on with some; those, and as many, must be found."""
    patient = {"abort_again_max": 100_000, "abort_backoff_s": 5}  # no quarantine: calls go on
    deaf = {"deaf_every": max(count // (2 * planted), 1), "lies": "aborts"}  # about half of the calls get as far as the engine
    with world(gateways, slots=64, settings=patient, answer_tokens=30_000, **deaf) as (engine, _, found):
        await hang_up(found, count)
        at = time.monotonic()
        await until(lambda: len({row["id"] for row in _named(found, "zombie_found")}) >= engine.stats()["running"], 60)
        left = engine.stats()["running"]
        ids = {row["id"] for row in _named(found, "zombie_found")}
        print(
            f"{count} hang-ups over {gateways} gateways, the engine runs on with {left}: {len(ids)} zombies found, the last"
            f" {time.monotonic() - at:.1f} s after the last hang-up; missed {max(left - len(ids), 0)}, too many"
            f" {max(len(ids) - left, 0)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overload", "learned", "kill", "outage", "hangups", "zombies"))
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    if chosen.what == "overload":
        asyncio.run(overload(chosen.gateways, chosen.seconds))
    elif chosen.what == "learned":
        asyncio.run(learned(chosen.gateways, chosen.workers, chosen.seconds))
    elif chosen.what == "kill":
        asyncio.run(kill(chosen.gateways, chosen.runs))
    elif chosen.what == "outage":
        asyncio.run(outage(chosen.gateways, chosen.seconds))
    elif chosen.what == "hangups":
        asyncio.run(hangups(chosen.gateways, chosen.runs))
    else:
        asyncio.run(zombies(chosen.gateways, chosen.runs))


if __name__ == "__main__":
    main()
