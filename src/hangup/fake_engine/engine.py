"""The engine itself: `schedule → step` over slots, in the way real engines batch, with counters of what it computed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

# aborts: says that it did, and does not; done: works on after an answer's end; frozen: its figures do not move;
# nonsense: they are none that can be; usage: tells far more tokens than there were.
LIES = ("aborts", "done", "frozen", "nonsense", "usage")
WORKS_ON_TOKENS = 300  # after it said that it was done
USAGE_MORE = 1_000_000


@dataclass(slots=True)
class Behaviour:
    """How the engine acts; every field is a flag of `hangup standin` and can be changed while it runs."""

    slots: int = 4
    queue: int = 64  # waiting calls; more are answered `full_status`
    full_status: int = 503  # 429: as hosted APIs answer
    retry_after_s: float = 0.0  # told with it; 0 tells nothing
    prefill_s: float = 0.05  # of each call, however many others read their prompts at the same time
    prefill_token_s: float = 0.0  # added for each token of the prompt
    token_s: float = 0.02  # the time of one step, in which every running call gets one token
    answer_tokens: int = 64  # length of an answer that meets no cap
    embed_s: float = 0.0  # the time of one embeddings call, however many inputs it has and however many others run
    deaf: bool = False  # computes on when the client leaves
    ignore_cap: bool = False  # computes on past max_tokens
    ignore_stream: bool = False  # answers as a whole even when asked to stream
    refuse_stream: bool = False  # answers 400 when asked to stream
    stall_after: int = 0  # falls silent after that many tokens of a call
    crash_after: int = 0  # the process kills itself after that many tokens of a call
    cut_after: int = 0  # closes the connection, with clean framing, after that many tokens
    fail_status: int = 0  # answers every generation with this status
    models: str = ""  # the models that it has, separated by commas: others are answered 404; none: it answers to any name
    like: str = ""  # which engine it looks like on the wire: see likeness.py
    cache_tokens: int = 1 << 20  # the size of its cache, as far as the engine it looks like tells it
    lag_s: float = 0.0  # how old the figures are that it tells
    status_hangs: bool = False  # never answers when asked what it runs
    wedge: bool = False  # stops computing altogether at the first hang-up or abort, and stays busy
    cors: bool = False  # answers pages of other sites, as vLLM does by default
    crash_on_abort: bool = False  # the process kills itself when told to abort
    lies: str = ""  # which, separated by commas: see LIES

    def change(self, values: dict[str, Any]) -> None:
        kinds = {f.name: type(f.default) for f in fields(self)}  # not of its value, which may be a whole number of seconds
        for name, value in values.items():
            if name not in kinds:
                raise ValueError(f"no such behaviour: {name}")
            kind, given = kinds[name], type(value)
            if given is not kind and not (kind is float and given is int):
                raise ValueError(f"{name} must be of type {kind.__name__}")
            if name == "lies" and not set(filter(None, value.split(","))) <= set(LIES):
                raise ValueError(f"lies are some of {', '.join(LIES)}")
            setattr(self, name, value)


@dataclass(slots=True)
class FakeCounters:
    requests: int = 0
    refused: int = 0
    started: int = 0  # got a slot
    finished: int = 0
    aborted: int = 0  # stopped before their end, by a lost client or an abort
    abort_requests: int = 0
    tokens: int = 0  # computed in all
    tokens_after_gone: int = 0  # computed for a client who had left
    prefills: int = 0
    prefills_for_gone: int = 0
    running_peak: int = 0
    waiting_peak: int = 0


@dataclass(slots=True, eq=False)
class FakeWork:
    """One generation. `on_token` and `on_end` are the server's, and do nothing once the client is gone."""

    id: str
    prompt_tokens: int
    length: int  # tokens per choice at which it ends by itself
    choices: int
    on_token: Callable[[int], None]
    on_end: Callable[[], None]
    prefill_left_s: float = 0.0
    computed: int = 0  # tokens per choice
    gone: bool = False
    over: bool = False
    wanted_slot: int | None = None
    slot: int = -1
    task: int = 0


@dataclass(slots=True)
class Past:
    """What is remembered of an ended call, for tests that compare call by call."""

    id: str
    tokens: int
    ended: str


class Snapshot(NamedTuple):
    at: float
    running: int
    waiting: int
    tokens: int


@dataclass
class FakeEngine:
    behaviour: Behaviour
    crash: Callable[[], None]
    counters: FakeCounters = field(default_factory=FakeCounters)
    waiting: deque[FakeWork] = field(default_factory=deque)
    running: list[FakeWork] = field(default_factory=list)
    embedding: int = 0  # inputs of embeddings calls at work: they take no slot, but engines count them as running
    past: deque[Past] = field(default_factory=lambda: deque(maxlen=20_000))
    wedged: bool = False
    happened_at: float = 0.0  # the last result of any call
    _snapshots: deque[Snapshot] = field(default_factory=lambda: deque(maxlen=10_000))
    _frozen: Snapshot | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, work: FakeWork) -> bool:
        """Queues a call; False when every slot and every place in the queue is taken."""
        self.counters.requests += 1
        if len(self.waiting) + len(self.running) >= self.behaviour.queue + self.behaviour.slots:
            self.counters.refused += 1
            return False
        self.waiting.append(work)
        self.counters.waiting_peak = max(self.counters.waiting_peak, len(self.waiting))
        self._wake.set()
        return True

    def client_gone(self, work: FakeWork) -> None:
        """The connection of a call was lost; a deaf engine does not care."""
        if work.over:
            return
        work.gone = True
        if self.behaviour.wedge:
            self.wedged = True
        elif not self.behaviour.deaf:
            self._drop(work)

    def abort(self, id: str) -> int | None:
        """Stops the calls with this id, unless deaf; tells how many tokens they got."""
        self.counters.abort_requests += 1
        if self.behaviour.crash_on_abort:
            self.crash()
        self.wedged = self.wedged or self.behaviour.wedge
        named = [work for work in (*self.running, *self.waiting) if work.id == id]
        if not self.lies("aborts") and not self.behaviour.deaf and not self.wedged:
            for work in named:
                self._drop(work)
        return sum(work.computed * work.choices for work in named) if named else None

    def lies(self, about: str) -> bool:
        return about in self.behaviour.lies.split(",")

    def _drop(self, work: FakeWork) -> None:
        (self.running if work in self.running else self.waiting).remove(work)
        self.counters.aborted += 1
        self._end(work, "aborted")

    def _end(self, work: FakeWork, how: str) -> None:
        work.over = True
        self.past.append(Past(work.id, work.computed * work.choices, how))
        if not work.gone:
            work.on_end()

    async def run(self) -> None:
        """Steps as long as there is work, at the set pace."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self.running and not self.waiting:
                self._wake.clear()
                await self._wake.wait()
                due = loop.time()
            due = max(due + self.behaviour.token_s, loop.time())
            await asyncio.sleep(max(0.0, due - loop.time()))
            self.step()

    def step(self) -> None:
        self._remember()
        if self.wedged:
            return
        self._schedule()
        for work in list(self.running):
            if work.over:
                continue
            if work.prefill_left_s > 0:
                work.prefill_left_s -= self.behaviour.token_s
            else:
                self._compute(work)

    def _schedule(self) -> None:
        behaviour = self.behaviour
        if not self.waiting or len(self.running) >= behaviour.slots:
            return
        taken = {work.slot for work in self.running}
        free = {slot: None for slot in range(behaviour.slots) if slot not in taken}  # in order
        still: list[FakeWork] = []
        for work in self.waiting:
            if not free or (work.wanted_slot is not None and work.wanted_slot not in free):
                still.append(work)  # it waits for that one
                continue
            work.slot = next(iter(free)) if work.wanted_slot is None else work.wanted_slot
            del free[work.slot]
            work.task = self.counters.started
            work.prefill_left_s = behaviour.prefill_s + behaviour.prefill_token_s * work.prompt_tokens
            self.running.append(work)
            self.counters.started += 1
            self.counters.prefills += 1
            self.counters.prefills_for_gone += work.gone
        self.waiting = deque(still)
        self.counters.running_peak = max(self.counters.running_peak, len(self.running))

    def _compute(self, work: FakeWork) -> None:
        behaviour = self.behaviour
        if behaviour.stall_after and work.computed >= behaviour.stall_after:
            return
        work.computed += 1
        self.counters.tokens += work.choices
        if work.gone:
            self.counters.tokens_after_gone += work.choices
        else:
            work.on_token(work.computed - 1)
            self.happened_at = asyncio.get_running_loop().time()
        if behaviour.crash_after and work.computed >= behaviour.crash_after:
            self.crash()
        cut = behaviour.cut_after and work.computed >= behaviour.cut_after
        if not work.over and (work.computed >= work.length or cut):
            self.running.remove(work)
            self.counters.finished += 1
            self._end(work, "finished")
            if self.lies("done") and not work.gone:
                self._work_on(work)

    def _work_on(self, work: FakeWork) -> None:
        more = replace(work, length=work.computed + WORKS_ON_TOKENS, gone=True, over=False)
        self.running.append(more)

    def _remember(self) -> None:
        if self.behaviour.lag_s:
            self._snapshots.append(self._snapshot())

    def _snapshot(self) -> Snapshot:
        now = asyncio.get_running_loop().time()
        return Snapshot(now, len(self.running) + self.embedding, len(self.waiting), self.counters.tokens)

    def cache_used(self) -> float:
        """The share of its cache that the running calls fill."""
        held = sum(work.prompt_tokens + work.computed * work.choices for work in self.running)
        return min(held / self.behaviour.cache_tokens, 1.0)

    def forget_peaks(self) -> None:
        """From now on the peaks are of what comes: for tests that look at a full engine."""
        self.counters.running_peak, self.counters.waiting_peak = len(self.running), len(self.waiting)

    def shown(self) -> Snapshot:
        """What it tells of itself, as late as it is set to."""
        self._remember()
        now = self._snapshot()
        if self.lies("nonsense"):
            return Snapshot(now.at, -3, 10**12, -1)
        self._frozen = (self._frozen or now) if self.lies("frozen") else None
        if self._frozen is not None:
            return self._frozen
        past = [snapshot for snapshot in self._snapshots if snapshot.at <= now.at - self.behaviour.lag_s]
        if not self.behaviour.lag_s:
            return now
        return past[-1] if past else Snapshot(0.0, 0, 0, 0)

    def stats(self) -> dict[str, Any]:
        return {**asdict(self.counters), "running": len(self.running), "waiting": len(self.waiting)}
