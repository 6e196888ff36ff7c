"""make bench ARGS=reaper: false convictions, missed zombies, recovery from a wedge, and the cost of verification.

On stand-in engines, which know exactly what they compute.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.processes import Gateway, StandIn
from support.raw import Client
from support.waiting import wait_until

CHAT = b'{"messages":[{"role":"user","content":"hello"}],"stream":true}'
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
CALLS = 10_000
AT_A_TIME = 100


async def run() -> dict[str, Any]:
    results: dict[str, Any] = {"soak": {like or "stand-in": await _soak(like) for like in ("", "vllm", "llamacpp")}}
    results["deaf"] = {like or "stand-in": await asyncio.to_thread(_deaf, like) for like in ("", "vllm", "llamacpp")}
    results["wedge"] = {like: await asyncio.to_thread(_wedge, like) for like in ("llamacpp", "sglang", "vllm")}
    results["overhead"] = await _overhead()
    return results


async def _call(address: tuple[str, int], patience_s: float) -> None:
    """Read until patience runs out, then hang up; sometimes the answer has ended before."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REQUEST % (len(CHAT), CHAT))
    try:
        async with asyncio.timeout(patience_s):
            while (data := await reader.read(65536)) and not data.endswith(b"0\r\n\r\n"):
                pass
    except TimeoutError:
        pass
    writer.close()


async def _soak(like: str) -> dict[str, float]:
    behaviour: dict[str, Any] = {"slots": 64, "prefill_s": 0.02, "token_s": 0.005, "answer_tokens": 60, "queue": 10_000}
    with StandIn(like=like, **behaviour) as engine, Gateway(engine.url) as gateway:
        await asyncio.sleep(2)
        waiting = iter(range(CALLS))

        async def client() -> None:
            for _ in waiting:
                await _call(gateway.address, random.uniform(0.0, 0.6))

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(AT_A_TIME)))
        took_s = time.monotonic() - began
        await asyncio.sleep(3)
        rows = gateway.log()
        hung_up = sum(row.get("outcome") == "client_gone" for row in rows)
        bad = sum(row.get("event") in ("zombie_found", "orphans_found", "ladder_step_taken") for row in rows)
        verified = sum(v for k, v in gateway.metrics().items() if k.startswith("hangup_releases") and "unverified" not in k)
        name = like or "stand-in"
        print(f"  {name}: {CALLS} calls in {took_s:.0f} s, {hung_up} hang-ups, {verified:.0f} verified, {bad} convictions")
        return {"calls": CALLS, "seconds": took_s, "hang_ups": hung_up, "verified": verified, "convictions": bad}


def _hang_up(gateway: Gateway, id: str) -> None:
    client = Client(gateway.address)
    client.chat(stream=True, headers={"X-Request-Id": id})
    client.read_until(b"data:")
    client.fin()


def _named(gateway: Gateway) -> set[str]:
    return {row["id"] for row in gateway.log() if row.get("event") == "zombie_found"}


def _deaf(like: str) -> dict[str, int]:
    """Check that every call that a deaf engine continues is named, neighbours included."""
    with StandIn(like=like, deaf=True, slots=32, answer_tokens=100_000) as engine, Gateway(engine.url) as gateway:
        time.sleep(1)
        ids = {f"left-{index}" for index in range(20)}
        for id in sorted(ids):
            _hang_up(gateway, id)
        wait_until(lambda: _named(gateway) >= ids, 20, "all of them")
        print(
            f"  deaf ({like or 'stand-in'}): {len(ids)} left, {len(_named(gateway))} named, {len(ids - _named(gateway))} missed"
        )
        return {"left": len(ids), "named": len(_named(gateway)), "missed": len(ids - _named(gateway))}


def _wedge(like: str) -> dict[str, float]:
    """Wedge a slot of the one backend, under --spawn with default limits, while one call a second continues."""
    command = f"{sys.executable} -m hangup standin --port {{port}} --like {like} --wedge --slots 2 --answer-tokens 5000"
    with Gateway(spawn=command) as gateway:
        wait_until(lambda: any("recognised" in str(row.get("change")) for row in gateway.log()), what="the engine")
        _hang_up(gateway, "wedges")
        began = time.monotonic()
        with ThreadPoolExecutor(64) as pool:
            requests: list[Future[tuple[int, float]]] = []
            while time.monotonic() - began < 60 and not any(f.done() and f.result()[0] == 200 for f in requests):
                requests.append(pool.submit(_one, gateway, began))
                time.sleep(1)
            ends = [future.result() for future in requests]
        took_s = min(after_s for status, after_s in ends if status == 200)
        refused = sum(status != 200 for status, _ in ends)
        aborts = sum(row.get("step") == "abort" for row in gateway.log())
        print(
            f"  wedged under --spawn ({like}), a call a second: next one completed {took_s:.1f} s after the hang-up,"
            f" {refused} of {len(ends)} were refused meanwhile, {aborts} further aborts"
        )
        return {"seconds": took_s, "aborts": aborts, "refused": refused, "asked": len(ends)}


def _one(gateway: Gateway, began: float) -> tuple[int, float]:
    """Return the call's status, and when it ended."""
    with Client(gateway.address) as client:
        client.sock.settimeout(150)
        client.chat(max_tokens=2)
        return client.read_answer().status, time.monotonic() - began


async def _overhead() -> dict[str, float]:
    """Measure the gateway's CPU with 400 streams and 50 hang-ups a second, on an engine with counters and on one without."""
    found: dict[str, list[float]] = {}
    for engine_name in ("openai-hosted", "standin", "openai-hosted", "standin"):
        behaviour: dict[str, Any] = {"slots": 1000, "token_s": 0.1, "answer_tokens": 100_000, "queue": 10_000}
        with StandIn(**behaviour) as engine, Gateway(engine.url, engine=engine_name, slots=1000) as gateway:
            share = await _cpu_share(gateway)
            found.setdefault(engine_name, []).append(share)
    shares = {name: min(values) for name, values in found.items()}
    extra = shares["standin"] - shares["openai-hosted"]
    print(f"  verification: {shares['standin']:.1%} of a processor against {shares['openai-hosted']:.1%}: {extra:+.1%}")
    return {"with": shares["standin"], "without": shares["openai-hosted"], "extra": extra}


async def _cpu_share(gateway: Gateway) -> float:
    streams = [asyncio.ensure_future(_call(gateway.address, 60.0)) for _ in range(400)]
    await asyncio.sleep(3)
    before, began = _cpu_s(gateway.popen.pid), time.monotonic()
    leavers = []
    for _ in range(50 * 8):
        leavers.append(asyncio.ensure_future(_call(gateway.address, 0.5)))
        await asyncio.sleep(0.02)
    share = (_cpu_s(gateway.popen.pid) - before) / (time.monotonic() - began)
    for stream in (*streams, *leavers):
        stream.cancel()
    await asyncio.gather(*streams, *leavers, return_exceptions=True)
    return share


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
