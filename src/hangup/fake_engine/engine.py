"""The fake engine's core: `schedule → step` over slots, batching as real engines do, with exact counters of its work."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

# aborts: confirms an abort but keeps computing; done: keeps computing after the answer's end; frozen: reports figures that
# never change; nonsense: reports impossible figures; usage: reports far more tokens than it computed.
LIES = ("aborts", "done", "frozen", "nonsense", "usage")
# Calls that a half-deaf engine does not stop: those in a state, or those that answer in a way.
DEAF_TO = ("queued", "prefill", "stream", "whole")
EXTRA_TOKENS = 300  # how many more it computes after a false "done"
EXTRA_USAGE_TOKENS = 1_000_000


def _flag(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(slots=True)
class Behaviour:
    """How the engine behaves. Every field is a flag of `hangup standin` and can be changed while it runs."""

    slots: int = _flag(4, "calls computed at the same time")
    queue: int = _flag(64, "calls that may wait for a slot; further calls get --full-status")
    full_status: int = _flag(503, "status while the queue is full; hosted APIs answer 429")
    retry_after_s: float = _flag(0.0, "the Retry-After of that answer; 0 sends none")
    prefill_s: float = _flag(0.05, "time to the first token of each call, whatever else runs")
    prefill_token_s: float = _flag(0.0, "added to that for each token of the prompt")
    token_s: float = _flag(0.02, "time of one step, in which every running call gets one token")
    draft: int = _flag(0, "speculative decoding: tokens that each call drafts in a step, of which it accepts half; 0: none")
    answer_tokens: int = _flag(64, "length of an answer that no maximum cuts short")
    embed_s: float = _flag(0.0, "time of one embeddings call, whatever else runs")
    deaf: bool = _flag(False, "keep computing after the client hangs up")
    deaf_every: int = _flag(0, "keep computing after every N-th hang-up only; 0: never")
    deaf_to: str = _flag("", f"keep computing for some calls only, separated by commas: {', '.join(DEAF_TO)}")
    late_s: float = _flag(0.0, "notice a hang-up this much later")
    ignore_cap: bool = _flag(False, "keep computing past max_tokens")
    ignore_stream: bool = _flag(False, "send a whole answer even if the request asks for a stream")
    refuse_stream: bool = _flag(False, "answer 400 to a request for a stream")
    stall_after: int = _flag(0, "stall each call after this many tokens; 0: never")
    crash_after: int = _flag(0, "kill the process after this many tokens of a call; 0: never")
    cut_after: int = _flag(0, "close the connection, with clean framing, after this many tokens; 0: never")
    fail_status: int = _flag(0, "answer every generation with this status; 0: generate")
    models: str = _flag("", "models that it has, separated by commas: others get 404; empty: any name is accepted")
    like: str = _flag("", "engine to imitate on the wire: vllm, sglang, llamacpp, …; empty: an engine of its own kind")
    cache_tokens: int = _flag(1 << 20, "size of its KV cache, reported if the imitated engine reports it")
    lag_s: float = _flag(0.0, "age of the figures that it reports")
    status_hangs: bool = _flag(False, "never answer a status request")
    wedge: bool = _flag(
        False,
        "stop computing altogether at the first hang-up or abort, and stay busy; with --draft: draft for ever at the first "
        "hang-up during an answer, and read no further cancel",
    )
    cors: bool = _flag(False, "answer pages of other sites, as vLLM does by default")
    crash_on_abort: bool = _flag(False, "kill the process on an abort")
    lies: str = _flag("", f"what to lie about, separated by commas: {', '.join(LIES)}")

    def change(self, values: dict[str, Any]) -> None:
        kinds = {f.name: type(f.default) for f in fields(self)}  # the default's type: a value may be a whole number of seconds
        for name, value in values.items():
            if name not in kinds:
                raise ValueError(f"unknown behaviour: {name}")
            kind, given = kinds[name], type(value)
            if given is not kind and not (kind is float and given is int):
                raise ValueError(f"{name} must be of type {kind.__name__}")
            if name == "deaf_to" and not set(filter(None, value.split(","))) <= set(DEAF_TO):
                raise ValueError(f"deaf_to: choose from {', '.join(DEAF_TO)}")
            if name == "lies" and not set(filter(None, value.split(","))) <= set(LIES):
                raise ValueError(f"lies: choose from {', '.join(LIES)}")
            setattr(self, name, value)


@dataclass(slots=True)
class FakeCounters:
    requests: int = 0
    refused: int = 0
    started: int = 0  # got a slot
    finished: int = 0
    aborted: int = 0  # stopped early, by a hangup or an abort
    abort_requests: int = 0
    cancels_unread: int = 0  # hang-ups and aborts that a wedged engine never acted on
    tokens: int = 0  # computed in all
    drafted: int = 0  # tokens guessed by speculative decoding, accepted or not
    tokens_after_gone: int = 0  # computed after the client had hung up
    tokens_in_vain: int = 0  # of all calls that were stopped early, or whose client had hung up when they ended
    prefills: int = 0
    prefills_for_gone: int = 0
    running_peak: int = 0
    waiting_peak: int = 0


@dataclass(slots=True, eq=False)
class FakeWork:
    """One generation. `on_token` and `on_end` call the server; the engine does not call them once the client is gone."""

    id: str
    prompt_tokens: int
    length: int  # tokens per choice at which it ends by itself
    choices: int
    on_token: Callable[[int], None]
    on_end: Callable[[], None]
    prefill_remaining_s: float = 0.0
    computed: int = 0  # tokens per choice
    client_gone: bool = False
    ended: bool = False
    stream: bool = False
    wanted_slot: int | None = None
    slot: int = -1
    task: int = 0


@dataclass(slots=True)
class Past:
    """The record of an ended call, for tests that compare call by call."""

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
    embedding: int = 0  # inputs of running embeddings calls: they take no slot, but engines count them as running
    past: deque[Past] = field(default_factory=lambda: deque(maxlen=20_000))
    wedged: bool = False
    _hangups: int = 0
    last_activity_at: float = 0.0  # when any call last got a token, or llama.cpp's status was read
    _snapshots: deque[Snapshot] = field(default_factory=lambda: deque(maxlen=10_000))
    _frozen: Snapshot | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, work: FakeWork) -> bool:
        """Queue a call; return False if all slots and the queue are full."""
        self.counters.requests += 1
        if len(self.waiting) + len(self.running) >= self.behaviour.queue + self.behaviour.slots:
            self.counters.refused += 1
            return False
        self.waiting.append(work)
        self.counters.waiting_peak = max(self.counters.waiting_peak, len(self.waiting))
        self._wake.set()
        return True

    def client_gone(self, work: FakeWork) -> None:
        """Abort a call whose connection was lost; a deaf engine keeps computing."""
        if work.ended:
            return
        work.client_gone = True
        if self._wedges(work):
            self.counters.cancels_unread += 1
        elif self._ignores(work):
            pass
        elif self.behaviour.late_s:
            asyncio.get_running_loop().call_later(self.behaviour.late_s, self._drop_late, work)
        else:
            self._drop(work)

    def _wedges(self, work: FakeWork) -> bool:
        """Return whether a cancel of this call reaches a wedged engine, or wedges it. One that speculates gets stuck only in
        its draft loop, where it never looks at the queue with the cancels; calls that wait or prefill are in no such loop."""
        behaviour = self.behaviour
        self.wedged = self.wedged or (behaviour.wedge and (not behaviour.draft or work.computed > 0))
        return self.wedged

    def _ignores(self, work: FakeWork) -> bool:
        """Count a hang-up, and decide whether this engine is deaf to it."""
        behaviour, deaf_to = self.behaviour, self.behaviour.deaf_to.split(",")
        self._hangups += 1
        state = "queued" if work in self.waiting else "prefill" if not work.computed else ""
        kinds = {state or "running", "stream" if work.stream else "whole"}
        return behaviour.deaf or bool(kinds & set(deaf_to)) or _is_nth(self._hangups, behaviour.deaf_every)

    def _drop_late(self, work: FakeWork) -> None:
        if not work.ended:
            self._drop(work)

    def abort(self, id: str) -> int | None:
        """Stop the calls with this id, unless deaf; return how many tokens they got, or None if there are none."""
        self.counters.abort_requests += 1
        if self.behaviour.crash_on_abort:
            self.crash()
        matching = [work for work in (*self.running, *self.waiting) if work.id == id]
        for work in matching:
            if self._wedges(work):
                self.counters.cancels_unread += 1
            elif not self.lies("aborts") and not self.behaviour.deaf:
                self._drop(work)
        return sum(work.computed * work.choices for work in matching) if matching else None

    def lies(self, about: str) -> bool:
        return about in self.behaviour.lies.split(",")

    def _drop(self, work: FakeWork) -> None:
        (self.running if work in self.running else self.waiting).remove(work)
        self.counters.aborted += 1
        self._end(work, "aborted")

    def _end(self, work: FakeWork, how: str) -> None:
        work.ended = True
        self.past.append(Past(work.id, work.computed * work.choices, how))
        if work.client_gone or how != "finished":
            self.counters.tokens_in_vain += work.computed * work.choices
        if not work.client_gone:
            work.on_end()

    async def run(self) -> None:
        """Step at the set pace while there is work."""
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
        self._record_snapshot()
        if self.wedged:
            self._draft()
            return
        self._schedule()
        for work in list(self.running):
            if work.ended:
                continue
            if work.prefill_remaining_s > 0:
                work.prefill_remaining_s -= self.behaviour.token_s
            else:
                self._compute_step(work)
        self._draft()

    def _draft(self) -> None:
        drafting = sum(work.choices for work in self.running if work.prefill_remaining_s <= 0)
        self.counters.drafted += self.behaviour.draft * drafting

    def _compute_step(self, work: FakeWork) -> None:
        """Compute one token, and the accepted half of the draft."""
        for _ in range(1 + self.behaviour.draft // 2):
            if not work.ended:
                self._compute(work)

    def _schedule(self) -> None:
        behaviour = self.behaviour
        if not self.waiting or len(self.running) >= behaviour.slots:
            return
        taken = {work.slot for work in self.running}
        free = {slot: None for slot in range(behaviour.slots) if slot not in taken}  # in order
        still_waiting: list[FakeWork] = []
        for work in self.waiting:
            if not free or (work.wanted_slot is not None and work.wanted_slot not in free):
                still_waiting.append(work)  # it waits for the slot that it asked for
                continue
            work.slot = next(iter(free)) if work.wanted_slot is None else work.wanted_slot
            del free[work.slot]
            work.task = self.counters.started
            work.prefill_remaining_s = behaviour.prefill_s + behaviour.prefill_token_s * work.prompt_tokens
            self.running.append(work)
            self.counters.started += 1
            self.counters.prefills += 1
            self.counters.prefills_for_gone += work.client_gone
        self.waiting = deque(still_waiting)
        self.counters.running_peak = max(self.counters.running_peak, len(self.running))

    def _compute(self, work: FakeWork) -> None:
        behaviour = self.behaviour
        if behaviour.stall_after and work.computed >= behaviour.stall_after:
            return
        work.computed += 1
        self.counters.tokens += work.choices
        if work.client_gone:
            self.counters.tokens_after_gone += work.choices
        else:
            work.on_token(work.computed - 1)
            self.last_activity_at = asyncio.get_running_loop().time()
        if behaviour.crash_after and work.computed >= behaviour.crash_after:
            self.crash()
        cut = behaviour.cut_after and work.computed >= behaviour.cut_after
        if not work.ended and (work.computed >= work.length or cut):
            self.running.remove(work)
            self.counters.finished += 1
            self._end(work, "finished")
            if self.lies("done") and not work.client_gone:
                self._keep_computing(work)

    def _keep_computing(self, work: FakeWork) -> None:
        more = replace(work, length=work.computed + EXTRA_TOKENS, client_gone=True, ended=False)
        self.running.append(more)

    def _record_snapshot(self) -> None:
        if self.behaviour.lag_s:
            self._snapshots.append(self._snapshot())

    def _snapshot(self) -> Snapshot:
        now = asyncio.get_running_loop().time()
        return Snapshot(now, len(self.running) + self.embedding, len(self.waiting), self.counters.tokens)

    def cache_used(self) -> float:
        """Return the share of the cache that the running calls fill."""
        held = sum(work.prompt_tokens + work.computed * work.choices for work in self.running)
        return min(held / self.behaviour.cache_tokens, 1.0)

    def reset_peaks(self) -> None:
        """Reset the peaks to the current counts, for tests that look at a full engine."""
        self.counters.running_peak, self.counters.waiting_peak = len(self.running), len(self.waiting)

    def reported(self) -> Snapshot:
        """Return the figures that the engine reports, with the configured lag and lies."""
        self._record_snapshot()
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


def _is_nth(count: int, every: int) -> bool:
    return every > 0 and count % every == 0
