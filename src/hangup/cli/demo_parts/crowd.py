"""Simulated clients for the demo: some stay, some hang up, some refresh, some lose patience and retry."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field

import orjson

from hangup.tasks import Tasks

_TOKEN = b'"finish_reason":null'  # occurs once in each event of an answer
RETRIES_MAX = 2


@dataclass(frozen=True, slots=True)
class Habit:
    """A kind of client: its share of the crowd, and how it behaves."""

    name: str
    share: float
    patience_s: float  # for the first token
    leaves_after: float = 1.0  # the share of its answer that it reads before it hangs up
    retries: int = 0  # how often it retries after it hung up


HABITS = (
    Habit("stay", 0.45, 8.0),
    Habit("hang up", 0.25, 8.0, leaves_after=0.15),
    Habit("refresh", 0.15, 8.0, leaves_after=0.05, retries=1),
    Habit("time out", 0.15, 1.0, retries=RETRIES_MAX),
)


WHAT_THEY_DO = (
    "Of the clients, {:.0%} stay, {:.0%} hang up early, {:.0%} refresh, {:.0%} time out after {:g} s and retry."
).format(*(habit.share for habit in HABITS), HABITS[3].patience_s)


@dataclass(slots=True)
class CrowdTally:
    requests: int = 0
    completed: int = 0
    hung_up: int = 0
    refused: int = 0
    tokens: int = 0  # that reached a client
    connected: int = 0  # requests whose client is there now
    first_token_s: list[float] = field(default_factory=list)
    gave_up_s: list[float] = field(default_factory=list)  # how long clients waited that left before it

    @property
    def unfinished(self) -> int:
        """Requests that are under way, or were when the time was over."""
        return self.requests - self.completed - self.hung_up - self.refused

    def first_token_words(self, share: float) -> str:
        """Return a percentile of the time to the first token. Of a client that left before it, only a lower bound is known:
        it counts until it left (the estimator of Kaplan and Meier)."""
        seen = sorted([(seconds, True) for seconds in self.first_token_s] + [(seconds, False) for seconds in self.gave_up_s])
        waiting = 1.0  # the share of clients without a first token after so many seconds
        for before, (seconds, came) in enumerate(seen):
            waiting *= 1 - came / (len(seen) - before)
            if waiting <= 1 - share + 1e-9:
                return f"{seconds:.2f} s"
        return f"> {seen[-1][0]:.2f} s" if seen else "-"


class DemoCrowd:
    """Clients that arrive at a steady rate; the same seed gives the same arrivals."""

    def __init__(self, port: int, rate: float, answer_tokens: int, seed: int) -> None:
        self.tally = CrowdTally()
        self._port = port
        self._rate = rate
        self._answer_tokens = answer_tokens
        self._chance = random.Random(seed)  # noqa: S311 (a simulation)
        self._clients = Tasks("crowd")

    async def run(self, seconds: float) -> None:
        """Let clients arrive for that long; then the remaining clients hang up."""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                habit = self._chance.choices(HABITS, [h.share for h in HABITS])[0]
                self._clients.start(self._behave(habit))
                await asyncio.sleep(min(self._chance.expovariate(self._rate), max(0.0, end - time.monotonic())))
        finally:
            await self._clients.close()

    async def ask_at_once(self, count: int) -> None:
        """Send that many requests and wait for all of their answers."""
        await asyncio.gather(*(self._request(60.0, self._answer_tokens) for _ in range(count)))

    async def _behave(self, habit: Habit) -> None:
        for attempt in range(1 + habit.retries):
            last = attempt == habit.retries
            leaves_after = 1.0 if last and habit.leaves_after < 1 and habit.retries else habit.leaves_after
            self.tally.requests += 1
            if await self._request(habit.patience_s, int(self._answer_tokens * leaves_after)):
                return

    async def _request(self, patience_s: float, tokens_wanted: int) -> bool:
        """Send one request; return True if its answer was complete."""
        tally, began = self.tally, time.monotonic()
        body = orjson.dumps({"prompt": "MENENIUS:\n", "max_tokens": self._answer_tokens, "ignore_eos": True, "stream": True})
        writer, tokens, timed_out = None, 0, False
        tally.connected += 1
        try:
            async with asyncio.timeout(patience_s) as deadline:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                head = b"POST /v1/completions HTTP/1.1\r\nHost: demo\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                writer.write(head % len(body) + body)
                while data := await reader.read(65536):
                    found = data.count(_TOKEN)
                    if found and not tokens:
                        tally.first_token_s.append(time.monotonic() - began)
                        deadline.reschedule(None)
                    tokens += found
                    tally.tokens += found
                    if b"data: [DONE]" in data:
                        tally.completed += 1
                        return True
                    if tokens >= tokens_wanted:
                        break
        except TimeoutError:
            timed_out = True
            tally.gave_up_s.append(patience_s)
        except asyncio.CancelledError:  # the time is over
            if not tokens:
                tally.gave_up_s.append(time.monotonic() - began)
            raise
        except OSError:
            pass
        finally:
            tally.connected -= 1
            if writer is not None:
                with contextlib.suppress(Exception):
                    writer.transport.abort()
        if tokens or timed_out:
            tally.hung_up += 1
        else:
            tally.refused += 1
            await asyncio.sleep(0.2)
        return False
