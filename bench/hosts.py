"""Gateways that share an engine through Redis: goodput, over-admission, deaths, an outage of the store, and hang-ups.

usage: PYTHONPATH=tests python -m bench.hosts {overload,kill,outage,hangups} [--gateways N] [--runs N] [--seconds S]

Everything runs on one machine. Counts (calls, peaks, aborts) hold whatever else the machine does; times do not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from support.processes import Gateway, StandIn
from support.redis_server import RedisServer

SLOTS, TOKENS, TOKEN_S = 8, 50, 0.02
CALLS_PER_S = SLOTS / (TOKENS * TOKEN_S + 0.05)  # what the engine can serve


@contextlib.contextmanager
def world(gateways: int, slots: int = SLOTS, **engine: Any) -> Iterator[tuple[StandIn, RedisServer, list[Gateway]]]:
    behaviour = {"slots": 4 * slots, "prefill_s": 0.05, "token_s": TOKEN_S, "answer_tokens": TOKENS} | engine
    with contextlib.ExitStack() as stack:
        standin = stack.enter_context(StandIn(**behaviour))
        store = stack.enter_context(RedisServer())
        shared: dict[str, Any] = {"shared_state": store.url} if gateways > 1 else {}
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


async def kill(gateways: int, runs: int) -> None:
    """Kill a gateway with 50 streams, on an engine that does not notice when a connection ends."""
    freed, stopped, innocent = [], [], 0
    for number in range(runs):
        with world(gateways, slots=100, answer_tokens=30_000, deaf_to="stream") as (engine, _, found):
            victim, others = found[number % gateways], [g for n, g in enumerate(found) if n != number % gateways]
            streams = [asyncio.create_task(call(victim, 30_000, 30)) for _ in range(50)]
            streams += [asyncio.create_task(call(others[0], 30_000, 30)) for _ in range(20)]
            await until(lambda e=engine: e.stats()["running"] >= 70)  # type: ignore[misc]
            await asyncio.sleep(1)
            victim.popen.send_signal(signal.SIGKILL)
            more = [asyncio.create_task(call(random.choice(others), 30_000, 30)) for _ in range(80)]
            stopped.append(await until(lambda e=engine: e.stats()["aborted"] >= 50))  # type: ignore[misc]
            freed.append(stopped[-1] + await until(lambda e=engine: e.stats()["running"] >= 100))  # type: ignore[misc]
            innocent += engine.stats()["aborted"] - 50
            await stop([*streams, *more])
    print(
        f"{runs} × kill -9 with 50 streams, {gateways} gateways: all aborted after {max(stopped):.2f} s at most, places free"
        f" and used after {max(freed):.2f} s at most (median {sorted(freed)[runs // 2]:.2f}), innocent aborts: {innocent}"
    )


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


async def hangups(gateways: int, count: int) -> None:
    """Hang up at random points; then the gateways' counts must be the engine's."""
    with world(gateways, slots=32, answer_tokens=10_000) as (engine, _, found):
        left = count

        async def clients() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(random.expovariate(5)):
                        await call(random.choice(found), 10_000, 60)

        await asyncio.gather(*(clients() for _ in range(48)))
        idle = await until(lambda: engine.stats()["running"] + engine.stats()["waiting"] == 0)
        tasks = [asyncio.create_task(call(found[0], 10_000, 60)) for _ in range(32)]
        again = idle + await until(lambda: engine.stats()["running"] == 32)
        running = engine.stats()["running"]
        await stop(tasks)
        print(
            f"{count} hang-ups over {gateways} gateways: engine idle {idle:.2f} s after the last one, all {running} of 32 slots"
            f" used from one gateway after {again:.2f} s, peak {engine.stats()['running_peak']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overload", "kill", "outage", "hangups"))
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    if chosen.what == "overload":
        asyncio.run(overload(chosen.gateways, chosen.seconds))
    elif chosen.what == "kill":
        asyncio.run(kill(chosen.gateways, chosen.runs))
    elif chosen.what == "outage":
        asyncio.run(outage(chosen.gateways, chosen.seconds))
    else:
        asyncio.run(hangups(chosen.gateways, chosen.runs))


if __name__ == "__main__":
    main()
