"""Generates the simulated calls: when they arrive and what they ask for."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_OUTPUT_MAX = 4096  # the max_tokens that clients send; it says nothing about the length of the answer
_SLOW_BY = 5.0
_READING_S = 0.03  # seconds per token for clients that hang up in the middle of a stream
_IMAGE_TOKENS, _IMAGE_SPREAD = 3000.0, 0.6  # the prompt tokens of an image: median, and sigma of the logarithm
IMAGE_GUESS = 1500  # the gateway's estimate of an image's tokens: `FILE_TOKENS` of gateway/apis/media.py


class TraceRequest(NamedTuple):
    """One line of a trace."""

    at_s: float
    prompt: int
    output: int
    tenant: str = "default"


class SimCall(NamedTuple):
    """A client's call: what it asks for, and how long it waits."""

    at_s: float
    prompt: int
    output: int
    output_max: int
    tenant: str
    stream: bool
    patience_s: float  # to the first token of a stream, to the end of a whole answer
    sends_deadline: bool  # whether it sends its patience to the gateway as a deadline
    reads_s: float  # how long after the first token of a stream it hangs up
    slow_by: float = 1.0  # how many times as slowly it reads as tokens could arrive
    whole: bool = False  # not generated: the answer comes in one piece, after a time that depends on the input
    image: bool = False  # a part of the prompt is an image
    unseen: int = 0  # prompt tokens that the gateway's estimate misses; negative if it overestimates an image


@dataclass(frozen=True, slots=True)
class ClientHabits:
    """How clients behave."""

    stream_share: float = 0.7
    first_token_s: float = 10.0  # median patience of streaming clients
    whole_s: float = 40.0  # median patience of the other clients
    spread: float = 0.5  # of both, as sigma of the logarithm; 0 makes all equal
    deadline_share: float = 0.0  # share of clients that send their deadline with the call
    hang_up_share: float = 0.0  # share of streams whose clients hang up in the middle
    slow_readers: float = 0.0  # share of streams whose clients read five times as slowly as tokens could arrive
    embeddings: float = 0.0  # share of calls that generate nothing: the engine reads a prompt and answers once
    images: float = 0.0  # share of calls with an image, which takes long to read and does not show in the text
    retries: int = 2  # as the SDKs do
    heavy_tenant: float = 0.0  # share of all calls that one tenant sends; nine others send the rest


@dataclass(frozen=True, slots=True)
class Arrivals:
    kind: str = "gamma"  # trace: the trace's own times, scaled
    cv: float = 1.0  # coefficient of variation of the gaps
    burst_from_s: float = math.inf
    burst_s: float = 0.0
    burst_by: float = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """An endless load that repeats `requests`, at a rate that the run sets."""

    requests: Sequence[TraceRequest]
    crowd: ClientHabits = field(default_factory=ClientHabits)
    arrivals: Arrivals = field(default_factory=Arrivals)

    @property
    def mean_output(self) -> float:
        return sum(r.output for r in self.requests) / len(self.requests)

    def samples(self, rate: float, seed: int) -> Iterator[SimCall]:
        """Yield calls without end at `rate` a second, one at a time, so that memory stays flat."""
        rng = random.Random(seed)  # noqa: S311 (a seed must give one result)
        crowd, requests = self.crowd, self.requests
        times = self._trace_times(rate) if self.arrivals.kind == "trace" else self._gamma_times(rate, rng)
        in_order = self.arrivals.kind == "trace"
        count, uniform, gauss = len(requests), rng.random, rng.gauss
        for number, at_s in enumerate(times):
            _, prompt, output, tenant = requests[number % count if in_order else int(uniform() * count)]
            stream = uniform() < crowd.stream_share
            patience = crowd.first_token_s if stream else crowd.whole_s
            if crowd.spread:
                patience *= math.exp(gauss(0.0, crowd.spread))
            if crowd.heavy_tenant:
                tenant = "heavy" if uniform() < crowd.heavy_tenant else f"light-{int(uniform() * 9)}"
            sends_deadline = crowd.deadline_share > 0 and uniform() < crowd.deadline_share
            leaves = crowd.hang_up_share > 0 and stream and uniform() < crowd.hang_up_share
            reads = uniform() * output * _READING_S if leaves else math.inf
            if crowd.embeddings and uniform() < crowd.embeddings:
                yield SimCall(at_s, prompt, 1, 1, tenant, False, patience, sends_deadline, math.inf, whole=True)
                continue
            slow_by = _SLOW_BY if crowd.slow_readers and stream and uniform() < crowd.slow_readers else 1.0
            image = unseen = 0
            if crowd.images and uniform() < crowd.images:
                image = int(_IMAGE_TOKENS * math.exp(gauss(0.0, _IMAGE_SPREAD)))
                unseen = image - IMAGE_GUESS
            asked = SimCall(
                at_s, prompt + image, output, max(output, _OUTPUT_MAX), tenant, stream, patience, sends_deadline, reads, slow_by
            )
            yield asked._replace(image=True, unseen=unseen) if image else asked

    def _gamma_times(self, rate: float, rng: random.Random) -> Iterator[float]:
        shape = 1 / self.arrivals.cv**2
        scale = 1 / (rate * shape)
        burst = self.arrivals
        now = 0.0
        while True:
            gap = rng.gammavariate(shape, scale)
            now += gap / burst.burst_by if burst.burst_from_s <= now < burst.burst_from_s + burst.burst_s else gap
            yield now

    def _trace_times(self, rate: float) -> Iterator[float]:
        first, last = self.requests[0].at_s, self.requests[-1].at_s
        span = (last - first) * len(self.requests) / max(len(self.requests) - 1, 1) or 1.0
        scale = len(self.requests) / span / rate
        turn = 0
        while True:
            for request in self.requests:
                yield (request.at_s - first + turn * span) * scale
            turn += 1
