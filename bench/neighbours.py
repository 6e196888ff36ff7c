"""Difficult clients, calls and backends beside normal clients: none of them may cost a normal client its answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from hashlib import sha256
from typing import TypeVar

from bench import callers, targets
from bench.bars import Bar, Row, ratio
from bench.callers import Outcome
from bench.targets import pair

T = TypeVar("T")
SLOW_READERS, SLOW_S = 6, 35.0
COLD_S = 15.0
IMAGE_BYTES = 1_500_000


def _row(name: str, direct: list[Outcome], through: list[Outcome], *more: Bar) -> Row:
    """Return a row with the bars for every neighbour: each call is served, and its first token comes as soon as directly."""
    base, got = callers.sums(direct), callers.sums(through)
    figures = {"direct p90 s": base.first(0.9), "through p90 s": got.first(0.9), "statuses": got.statuses}
    if base.share < 1:
        figures["served directly"] = base.share
    late = Bar("first token p90 / direct", ratio(got.first(0.9), base.first(0.9)), 1.25, at_most=True)
    return Row(name, [Bar("served", got.share, 1.0), late, *more], figures)


@contextlib.contextmanager
def _config(text: str) -> Iterator[list[str]]:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        yield ["--config", file.name]


class Group:
    """Scenarios that run at the same time: all processes start before any load, and stop after all of it."""

    def __init__(self, stack: contextlib.ExitStack, scenarios: int) -> None:
        self._stack = stack
        self.all_started = asyncio.Barrier(scenarios).wait

    async def started(self, manager: contextlib.AbstractContextManager[T]) -> T:
        """Start a process in a thread, because starting blocks; the group stops it at its end."""
        made = await asyncio.to_thread(manager.__enter__)
        self._stack.push(manager)
        return made


async def slow_readers(group: Group) -> list[Row]:
    """Run six clients that read a stream of large events at 10 KB/s; then 20 normal clients arrive."""
    made = await group.started(pair(like="openai", slots=64, token_s=0.01, prefill_s=0.02))
    await group.all_started()
    normal = callers.encoded(callers.body(30))
    ports = (made.direct.port, made.gateway.port)
    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(_read_slowly(port)) for port in ports for _ in range(SLOW_READERS)]
        before = await _both(lambda port: callers.steady(port, normal, rate=2, seconds=SLOW_S), ports)
        after = await _both(lambda port: callers.burst(port, normal, 20), ports)
        for reader in readers:
            reader.cancel()
    return [
        _row(f"beside {SLOW_READERS} slow readers, 2 calls/s", *before),
        _row(f"beside {SLOW_READERS} slow readers, 20 at once after {SLOW_S:g} s", *after),
    ]


async def _read_slowly(port: int) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, callers.encoded(callers.body(3000, logprobs=True, top_logprobs=20)))
        with contextlib.suppress(OSError):
            while await loop.sock_recv(sock, 1000):  # noqa: ASYNC110 (it is this slow by intent)
                await asyncio.sleep(0.1)


async def _both(load: Callable[[int], Awaitable[list[Outcome]]], ports: tuple[int, ...]) -> tuple[list[Outcome], list[Outcome]]:
    direct, through = await asyncio.gather(*map(load, ports))
    return direct, through


async def high_priority(group: Group) -> list[Row]:
    """Configure a high-priority tenant that does not even call; make 60 calls as a normal tenant, then as a low one, on 64
    slots.
    """
    bands = {"chat": "high", "other": "normal", "nightly": "low"}
    text = "".join(
        f'[[tenant]]\nname = "{name}"\nkey_sha256 = ["{sha256(name.encode()).hexdigest()}"]\npriority = "{band}"\n'
        for name, band in bands.items()
    )
    rows = []
    flags = await group.started(_config(text))
    made = await group.started(pair(*flags, like="openai", slots=64, token_s=0.03, prefill_s=0.03))
    await group.all_started()
    for name in ("other", "nightly"):
        data = callers.encoded(callers.body(100), key=name)
        direct, through = await _both(partial(callers.burst, data=data, count=60), (made.direct.port, made.gateway.port))
        peak = targets.standin_stats(made.behind.port)["running_peak"]
        targets.control_standin(made.behind.port, "forget_peaks")
        rows.append(_row(f"priority {bands[name]}, an idle tenant is high", direct, through))
        rows[-1].figures["running at most"] = peak
    return rows


async def image(group: Group) -> list[Row]:
    """Run twelve text clients beside one call with an image of 1.5 MB; the engine reports a cache of 200,000 tokens."""
    url = "data:image/png;base64," + "A" * IMAGE_BYTES
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    text = callers.encoded(callers.body(40))
    picture = callers.encoded(callers.body(250, messages=[{"role": "user", "content": parts}]))

    async def load(port: int) -> list[Outcome]:
        async with asyncio.TaskGroup() as tasks:
            texts = tasks.create_task(callers.closed(port, text, clients=12, seconds=14))
            await asyncio.sleep(5)
            began = time.monotonic()
            one = await callers.call(port, picture, began=began)
        beside = [o for o in texts.result() if 5 <= o.began_s <= 10]
        return [one, *beside]

    made = await group.started(pair(like="vllm", cache_tokens=200_000, slots=32, token_s=0.02, prefill_s=0.02))
    await group.all_started()
    (image_direct, *direct), (image_through, *through) = await _both(load, (made.direct.port, made.gateway.port))
    calls = Bar("text calls / direct", ratio(len(through), len(direct)), 0.9)
    row = _row("text beside one image, like vLLM", direct, through, calls)
    row.figures |= {"image s": image_through.total_s, "image direct s": image_direct.total_s}
    return [row]


async def embeddings(group: Group) -> list[Row]:
    """Run chat at 5 calls/s beside 40 clients that embed 32 texts per call; like vLLM, the engine counts texts as running."""
    chat = callers.encoded(callers.body(30))
    texts = {"model": "standin", "input": [f"text {number}" for number in range(32)]}
    embed = callers.encoded(texts, "/v1/embeddings")

    async def load(port: int) -> list[list[Outcome]]:
        clients = callers.closed(port, embed, clients=40, seconds=10, stream=False)
        return list(await asyncio.gather(callers.steady(port, chat, rate=5, seconds=10), clients))

    made = await group.started(pair(like="vllm", slots=256, token_s=0.02, prefill_s=0.05, embed_s=0.2))
    await group.all_started()
    direct, through = await asyncio.gather(load(made.direct.port), load(made.gateway.port))
    calls = Bar("calls / direct", ratio(len(through[1]), len(direct[1])), 0.9)
    return [
        _row("chat beside embeddings, like vLLM", direct[0], through[0]),
        _row("embeddings beside chat, like vLLM", direct[1], through[1], calls),
    ]


async def bad_backend(group: Group, status: int) -> list[Row]:
    """Run two backends, one of which answers every call at once with this status: no client should notice."""
    flags = {"like": "openai", "slots": 32, "token_s": 0.02, "prefill_s": 0.02}
    alone, good = [await group.started(targets.standin(**flags)) for _ in range(2)]
    bad = await group.started(targets.standin(fail_status=status, **flags))
    text = "".join(f'[[backend]]\nurl = "http://127.0.0.1:{engine.port}"\n' for engine in (good, bad))
    gateway = await group.started(targets.hangup(None, *(await group.started(_config(text)))))
    await group.all_started()
    data = callers.encoded(callers.body(50))
    runs = await _both(lambda port: callers.closed(port, data, clients=10, seconds=6, pause_s=0.1), (alone.port, gateway.port))
    return [_row(f"one backend of two answers {status}", *runs)]


async def slower(group: Group) -> list[Row]:
    """Make the engine three times slower per token from some moment on, however many calls it has."""
    data = callers.encoded(callers.body(40))
    before_s, after_s = 6.0, 22.0
    made = await group.started(pair(like="openai", slots=32, token_s=0.04, prefill_s=0.04))
    await group.all_started()
    ports = (made.direct.port, made.gateway.port)
    load = asyncio.create_task(_both(lambda port: callers.closed(port, data, clients=12, seconds=before_s + after_s), ports))
    await asyncio.sleep(before_s)
    for engine in (made.direct, made.behind):
        await asyncio.to_thread(targets.control_standin, engine.port, "behave", token_s=0.12, prefill_s=0.12)
    direct, through = ([o for o in run if o.began_s >= before_s] for run in await load)
    done = [sum(outcome.served for outcome in run) for run in (through, direct)]
    return [_row("12 clients, an engine turned 3 x slower", direct, through, Bar("calls / direct", ratio(*done), 0.9))]


async def cold_call(group: Group) -> list[Row]:
    """Make a first call that takes 15 s (a model is loaded); then 10 calls/s on an engine with room."""
    data = callers.encoded(callers.body(20))
    made = await group.started(pair(like="openai", slots=1000, token_s=0.02, prefill_s=COLD_S))
    await group.all_started()
    ports = (made.direct.port, made.gateway.port)
    first = await _first_calls(made, data)
    runs = await _both(lambda port: callers.steady(port, data, rate=10, seconds=12), ports)
    row = _row(f"10 calls/s after a first call of {COLD_S:g} s", *runs)
    row.figures["first call s"] = first
    return [row]


async def cold_call_then_full(group: Group) -> list[Row]:
    """Do the same with 4 slots and 60 clients: a slow first call must not make the engine's own queue long."""
    data = callers.encoded(callers.body(20))
    made = await group.started(pair(like="openai", slots=4, token_s=0.02, prefill_s=COLD_S, queue=1000))
    await group.all_started()
    await _first_calls(made, data)
    load = asyncio.create_task(
        _both(lambda port: callers.closed(port, data, clients=60, seconds=20), (made.direct.port, made.gateway.port))
    )
    await asyncio.sleep(5)
    await asyncio.to_thread(targets.control_standin, made.behind.port, "forget_peaks")  # the engine is full by now
    direct, through = await load
    queue = targets.standin_stats(made.behind.port)["waiting_peak"]
    done = [sum(o.served and o.began_s + o.total_s <= 20 for o in run) for run in (through, direct)]
    bars = [Bar("engine's queue", queue, 3, at_most=True), Bar("calls / direct", ratio(*done), 0.95)]
    return [Row(f"4 slots, 60 clients after a first call of {COLD_S:g} s", bars, {"statuses": callers.sums(through).statuses})]


async def _first_calls(made: targets.Pair, data: bytes) -> float:
    """Make the lone first call on both sides; afterwards the engines are warm."""
    began = time.monotonic()
    calls = [asyncio.create_task(callers.call(t.port, data, began=began)) for t in (made.direct, made.gateway)]
    await asyncio.sleep(1)
    for engine in (made.direct, made.behind):
        await asyncio.to_thread(targets.control_standin, engine.port, "behave", prefill_s=0.05)
    outcomes = await asyncio.gather(*calls)
    return max(outcome.total_s for outcome in outcomes)


GROUPS: list[list[Callable[[Group], Awaitable[list[Row]]]]] = [
    [slow_readers, high_priority, partial(bad_backend, status=404), partial(bad_backend, status=429)],
    [image, embeddings, slower, cold_call, cold_call_then_full],
]


async def run() -> list[Row]:
    """Run the scenarios in two groups, each of which keeps two cores less than half busy."""
    rows: list[Row] = []
    for scenarios in GROUPS:
        with contextlib.ExitStack() as stack:
            group = Group(stack, len(scenarios))
            for found in await asyncio.gather(*(scenario(group) for scenario in scenarios)):
                rows += found
    return rows
