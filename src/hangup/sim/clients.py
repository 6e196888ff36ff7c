"""Simulates clients: they wait, lose patience, hang up, and retry as the SDKs do."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, Protocol

from hangup.sim.clock import VirtualClock
from hangup.sim.engine import RUNNING, SimEngine, SimWork
from hangup.sim.load import SimCall
from hangup.sim.tally import RunTally

_BACKOFF_S = 0.5  # of the OpenAI and Anthropic SDKs: doubled at each retry, up to the maximum
_BACKOFF_S_MAX = 8.0
_RETRY_AFTER_S_MAX = 60.0  # the SDKs ignore a longer Retry-After and use their own backoff


class SimClient:
    """One call of one client, through all its attempts."""

    __slots__ = ("engine", "gateway", "place", "sample", "sent_at", "tries", "turn", "work")

    def __init__(self, sample: SimCall) -> None:
        self.sample = sample
        self.tries = 0
        self.turn = 0  # events that were scheduled in an earlier turn are void
        self.sent_at = 0.0
        self.gateway: SimPolicy | None = None  # the gateway that holds the current attempt
        self.place: Any = None  # the gateway's own data
        self.work: SimWork | None = None
        self.engine: SimEngine | None = None


class SimPolicy(Protocol):
    """The interface of a simulated gateway. It may keep its own data in `client.place`."""

    def arrive(self, client: SimClient) -> None: ...

    def client_left(self, client: SimClient) -> None:
        """Drop the call of a client that hung up, wherever it is."""

    def first_token(self, client: SimClient) -> None: ...

    def ended(self, client: SimClient) -> None:
        """Release the call, whose answer is complete."""


class People:
    """All the clients of a run. It sends their calls, counts the outcomes and retries."""

    def __init__(
        self,
        clock: VirtualClock,
        tally: RunTally,
        gateway_for: Callable[[], SimPolicy],
        retries: int,
        rng: random.Random,
        quartiles: tuple[int, int, int],
    ) -> None:
        self.clock = clock
        self.tally = tally
        self._gateway_for = gateway_for
        self._retries = retries
        self._random = rng
        self._quartiles = quartiles

    def come(self, sample: SimCall) -> None:
        tally = self.tally
        if tally.open(self.clock.now):
            tally.calls += 1
            self._count(tally.offered_by, sample)
        self._try(SimClient(sample), 0)

    def _try(self, client: SimClient, _: int) -> None:
        clock = self.clock
        now = clock.now
        client.tries += 1
        client.turn += 1
        client.sent_at = now
        if self.tally.open(now):
            self.tally.attempts += 1
        clock.timeout(now + client.sample.patience_s, self._out_of_patience, client)
        client.gateway = gateway = self._gateway_for()
        gateway.arrive(client)

    # What the client sees

    def started(self, client: SimClient, engine: SimEngine) -> None:
        """Submit the call to the engine that the gateway chose."""
        sample = client.sample
        client.engine = engine
        client.work = SimWork(client, sample.prompt, sample.output, self._first_token, self._ended, sample.slow_by)
        engine.submit(client.work)

    def refused(self, client: SimClient, retry_after_s: float | None = None, may_retry: bool = True) -> None:
        tally, now = self.tally, self.clock.now
        if tally.open(now):
            tally.refused += 1
            tally.refusal_s.observe(now - client.sent_at)
        self._again(client, retry_after_s, may_retry)

    def connection_broke(self, client: SimClient) -> None:
        """The client's gateway died. SDKs retry, unless a stream has begun: then the error is the application's."""
        begun = client.work is not None and client.work.state == RUNNING and client.sample.stream
        client.work = None
        self._again(client, None, may_retry=not begun)

    def _first_token(self, work: SimWork) -> None:
        client: SimClient = work.owner
        now, sample = self.clock.now, client.sample
        if sample.stream:
            if self.tally.open(now):
                self.tally.ttft.observe(now - client.sent_at)
            if sample.reads_s < math.inf:
                self.clock.at(now + sample.reads_s, self._had_enough, client, client.turn)
        assert client.gateway is not None
        client.gateway.first_token(client)

    def _ended(self, work: SimWork) -> None:
        client: SimClient = work.owner
        self._served(client.sample, work.output, self.clock.now - client.sent_at)
        client.turn += 1
        gateway, client.gateway = client.gateway, None
        assert gateway is not None
        gateway.ended(client)
        client.work = None

    # Impatience

    def _out_of_patience(self, client: SimClient, turn: int) -> None:
        if turn != client.turn:
            return
        work = client.work
        if work is not None and client.sample.stream and work.state == RUNNING:
            return  # the client waits for a stream that has started
        if work is None and self.tally.open(self.clock.now):
            self.tally.left_queued += 1
        self._leave(client)
        self._again(client, None, True)

    def _had_enough(self, client: SimClient, turn: int) -> None:
        """Hang up in the middle of a stream. What the client got counts as delivered, and the client does not retry."""
        if turn == client.turn:
            assert client.engine is not None and client.work is not None
            self._served(client.sample, client.engine.computed(client.work), 0.0)
            self._leave(client)

    def _leave(self, client: SimClient) -> None:
        client.turn += 1
        gateway, client.gateway = client.gateway, None
        assert gateway is not None
        gateway.client_left(client)
        client.work = None

    def _again(self, client: SimClient, retry_after_s: float | None, may_retry: bool) -> None:
        client.turn += 1
        client.gateway = None
        now = self.clock.now
        if not may_retry or client.tries > self._retries:
            if self.tally.open(now):
                self.tally.given_up += 1
            return
        pause = min(_BACKOFF_S * 2 ** (client.tries - 1), _BACKOFF_S_MAX) * (1 - 0.25 * self._random.random())
        if retry_after_s is not None and retry_after_s <= _RETRY_AFTER_S_MAX:
            pause = retry_after_s
        self.clock.at(now + pause, self._try, client)

    # Counting

    def _served(self, sample: SimCall, tokens: float, total_s: float) -> None:
        tally, now = self.tally, self.clock.now
        if tally.open(now):
            tally.served += 1
            tally.good(sample.prompt, tokens, now)
            self._count(tally.served_by, sample)
            if not sample.stream:
                tally.ttft.observe(total_s)

    def _count(self, by: dict[str, int], sample: SimCall) -> None:
        low, middle, high = self._quartiles
        prompt = sample.prompt
        quartile = "q1" if prompt <= low else "q2" if prompt <= middle else "q3" if prompt <= high else "q4"
        by[quartile] += 1
        by["stream" if sample.stream else "whole"] += 1
        if sample.image:
            by["image"] += 1
        if sample.tenant != "default":
            by[sample.tenant] += 1
