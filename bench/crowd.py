"""A crowd of clients as a process: they arrive, wait, lose patience, disconnect and retry as the SDKs do. Prints what they got.

usage: python -m bench.crowd '{"port": …, "rate": …, "seconds": …, …}'

The simulator gets the same load, drawn from the same seed: see overload.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import uvloop

from hangup.sim.load import Arrivals, ClientHabits, Load, SimCall, TraceRequest

BACKOFF_S, BACKOFF_S_MAX = 0.5, 8.0
LENGTHS = (20, 80)  # tokens per answer, evenly spread
PROMPT = 50


@dataclass
class Got:
    """What the crowd saw between `from_s` and `until_s`."""

    calls: int = 0
    attempts: int = 0
    served: int = 0
    refused: int = 0
    tokens: int = 0
    prompts: int = 0
    first_token_s: list[float] = field(default_factory=list)
    refusal_s: list[float] = field(default_factory=list)
    by_tenant: dict[str, list[int]] = field(default_factory=dict)  # calls, served
    tokens_by_s: dict[int, int] = field(default_factory=dict)


def load(seed: int, crowd: dict[str, Any], arrivals: dict[str, Any]) -> Load:
    rng = random.Random(seed)
    requests = [TraceRequest(float(at), PROMPT, rng.randint(*LENGTHS)) for at in range(2000)]
    return Load(requests, ClientHabits(**crowd), Arrivals(**arrivals))


class People:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.retries = plan["crowd"].get("retries", ClientHabits().retries)
        self.got = Got()
        self.began = 0.0
        self.random = random.Random(plan["seed"])

    async def run(self) -> Got:
        plan = self.plan
        self.began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for sample in load(plan["seed"], plan["crowd"], plan["arrivals"]).samples(plan["rate"], plan["seed"]):
                if sample.at_s > plan["until_s"]:
                    break
                await asyncio.sleep(max(self.began + sample.at_s - time.monotonic(), 0))
                group.create_task(self.call(sample))
        return self.got

    def counts(self) -> bool:
        return bool(self.plan["from_s"] <= time.monotonic() - self.began <= self.plan["until_s"])

    async def call(self, sample: SimCall) -> None:
        got, row = self.got, self.got.by_tenant.setdefault(sample.tenant, [0, 0])
        counted = self.counts()
        got.calls += counted
        row[0] += counted
        for attempt in range(1 + self.retries):
            got.attempts += self.counts()
            pause = await self.attempt(sample, attempt)
            if pause is None:
                return
            own = min(BACKOFF_S * 2**attempt, BACKOFF_S_MAX) * (1 - 0.25 * self.random.random())
            await asyncio.sleep(own if pause < 0 else pause)

    async def attempt(self, sample: SimCall, attempt: int) -> float | None:
        """Return None if the call is over, else how long to wait before the next try (negative: the client's own backoff)."""
        start = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.plan["port"])
        except OSError:
            return -1.0
        try:
            writer.write(self.request(sample, attempt))
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + sample.patience_s) as patience:
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"HTTP/1.1 200"):
                    return self.refused(head, start)
                if sample.stream:
                    await reader.readuntil(b'"content":"')
                    await reader.readuntil(b'"content":"')  # the first one is empty: it names the role
                    patience.reschedule(None)
                    if self.counts():
                        self.got.first_token_s.append(time.monotonic() - start)
                    await reader.readuntil(b"[DONE]")
                else:
                    await reader.readuntil(b'"total_tokens"')
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            return -1.0
        finally:
            writer.transport.abort()
        self.served(sample)
        return None

    def request(self, sample: SimCall, attempt: int) -> bytes:
        content = "x " * PROMPT
        body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": sample.output}
        data = json.dumps({**body, "stream": sample.stream, "ignore_eos": True}).encode()
        lines = ["POST /v1/chat/completions HTTP/1.1", "host: a", "content-type: application/json", "connection: close"]
        lines += [f"content-length: {len(data)}", f"x-stainless-retry-count: {attempt}"]
        if sample.sends_deadline:
            lines.append(f"x-stainless-read-timeout: {sample.patience_s:g}")
        if self.plan.get("keys"):
            lines.append(f"authorization: Bearer key-of-{sample.tenant}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + data

    def refused(self, head: bytes, start: float) -> float | None:
        if self.counts():
            self.got.refused += 1
            self.got.refusal_s.append(time.monotonic() - start)
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        if fields.get(b"x-should-retry") == b"false":
            return None
        return float(fields.get(b"retry-after", -1))

    def served(self, sample: SimCall) -> None:
        if self.counts():
            got = self.got
            got.served += 1
            got.tokens += sample.output
            got.by_tenant[sample.tenant][1] += 1
            second = int(time.monotonic() - self.began)
            got.tokens_by_s[second] = got.tokens_by_s.get(second, 0) + sample.output


def main() -> None:
    print(json.dumps(uvloop.run(People(json.loads(sys.argv[1])).run()).__dict__))


if __name__ == "__main__":
    main()
