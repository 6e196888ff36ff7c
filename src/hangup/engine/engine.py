"""The engine loop: schedule → run → postprocess over slots, draining the mailbox before every forward."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hangup.engine.drafters import Drafter, make_drafter
from hangup.engine.mailbox import Mailbox
from hangup.engine.model import Batch, Ints, Luck, Model, Scores, place_seeds
from hangup.engine.options import EngineOptions
from hangup.engine.request import Busy, Choice, EndReason, Event, GenerationEnded, Progress, SubmittedRequest, Unfit, Vector
from hangup.engine.scheduler import BlockPool, Decode, Prefill, Scheduler, Sequence
from hangup.engine.text import Writer

OnEvent = Callable[[Event], None]
Outbox = list[tuple[OnEvent, Event]]

_CUT_REMEMBERED_MAX = 128  # cancelled calls


@dataclass(slots=True)
class EngineCounters:
    """Counts what the engine computed, and for which calls. The engine's thread writes it; any thread may read it."""

    refused: int = 0  # the engine was full
    submitted: int = 0
    started: int = 0  # got a slot
    finished: int = 0
    cancels: int = 0  # messages; a call sends one at most
    cancelled_running: int = 0
    cancelled_waiting: int = 0  # cancelled before they got a slot: nothing was computed for them
    failed: int = 0
    steps: int = 0
    forwards: int = 0  # of any model
    prompt_tokens: int = 0  # read by prefill
    tokens: int = 0  # of answers, for calls that were not cancelled
    tokens_dropped: int = 0  # computed for a call that was cancelled during the forward, or past its last token
    drafted: int = 0
    accepted: int = 0
    busy_seconds: float = 0.0  # time in steps


class ModelGate:
    """Guards every forward of every model. Two forwards without a drain between them are a bug, not a slow path."""

    def __init__(self, counters: EngineCounters) -> None:
        self._counters = counters
        self._drained = False

    def drained(self) -> None:
        self._drained = True

    def enter(self) -> None:
        assert self._drained, "a forward pass without draining the mailbox first"
        self._drained = False
        self._counters.forwards += 1


class Gated:
    """Wraps a model so that every forward passes the `ModelGate`."""

    def __init__(self, model: Model, gate: ModelGate) -> None:
        self._model = model
        self._gate = gate
        self.name, self.vocab, self.context = model.name, model.vocab, model.context
        self.eos, self.has_mtp, self.tokenizer = model.eos, model.has_mtp, model.tokenizer
        self.make_cache, self.keep_states = model.make_cache, model.keep_states

    def forward(self, batch: Batch) -> Scores:
        self._gate.enter()
        return self._model.forward(batch)

    def mtp(self, slots: Ints, tokens: Ints, luck: Luck) -> Ints:
        self._gate.enter()
        return self._model.mtp(slots, tokens, luck)


class Submission:
    """A submitted call."""

    __slots__ = ("_mailbox", "cancelled", "on_event", "sequence", "writer")

    def __init__(self, mailbox: Mailbox[Submission], request: SubmittedRequest, on_event: OnEvent, writer: Writer) -> None:
        self._mailbox = mailbox
        self.sequence = Sequence(request)
        self.on_event = on_event
        self.writer = writer
        self.cancelled = False

    def cancel(self) -> None:
        """Cancel the call. Any thread may call this at any time, repeatedly; it posts one message and never waits."""
        if not self.cancelled and self.sequence.reason is None:
            self.cancelled = True
            self._mailbox.post_cancel(self)

    def pause(self) -> None:
        """Compute nothing more until `resume`, since the reader does not keep up. The call keeps its slot and its cache."""
        self.sequence.paused = True

    def resume(self) -> None:
        if self.sequence.paused:
            self.sequence.paused = False
            self._mailbox.wake()


class Engine:
    """Runs calls on a model. Any thread may use `submit` and `Submission.cancel`; one thread calls `step` in a loop."""

    def __init__(
        self, model: Model, options: EngineOptions, post: Callable[[Outbox], None], draft_model: Model | None = None
    ) -> None:
        """Create the engine and its caches. `post` gets all events of a step at once."""
        self.counters = EngineCounters()
        self.mailbox: Mailbox[Submission] = Mailbox()
        self._gate = ModelGate(self.counters)
        blocks = options.blocks or options.slots * -(-model.context // options.block_tokens)
        for each in (model, draft_model):
            if each is not None:
                each.make_cache(options.slots, blocks, options.block_tokens)
        self.model: Model = Gated(model, self._gate)
        self.drafter = make_drafter(options, self.model, Gated(draft_model, self._gate) if draft_model else None)
        self.scheduler = Scheduler(
            options.slots, BlockPool(blocks, options.block_tokens), model.context, options.prefill_tokens_max
        )
        self._options = options
        self._post = post
        self._outbox: Outbox = []
        self._tickets: dict[Sequence, Submission] = {}
        self._submit_lock = threading.Lock()
        self._ended = 0
        self.cut: dict[str, int] = {}  # the most recently cancelled calls, by name, with the tokens of their answers

    # Any thread

    def submit(self, request: SubmittedRequest, on_event: OnEvent) -> Submission:
        """Queue a request. Raises `Busy` or `Unfit`; otherwise `on_event` gets exactly one `GenerationEnded`."""
        context, pool = self.model.context, self.scheduler.pool
        if not request.prompt or len(request.prompt) >= context or request.tokens_max < 1:
            raise Unfit(f"The prompt has {len(request.prompt)} tokens; prompt and answer must fit the context of {context}.")
        if pool.needed(min(context, len(request.prompt) + request.tokens_max)) > pool.count:
            raise Unfit(f"Prompt and answer must fit the KV cache of {pool.count * pool.block_tokens} tokens.")
        ticket = Submission(self.mailbox, request, on_event, Writer(self.model.tokenizer.decoder(), request.stop))
        with self._submit_lock:  # nothing may fail between the count and the post: the place would be lost
            if self.counters.submitted - self._ended >= self._options.slots + self._options.waiting_max:
                self.counters.refused += 1
                raise Busy("The queue is full; retry later.")
            if not self.mailbox.post_call(ticket):
                raise Busy("The engine has stopped.")
            self.counters.submitted += 1
        return ticket

    # The engine's thread

    def step(self) -> bool:
        """Run one step; return False if there was no work."""
        began = time.perf_counter()
        self._drain()
        match self.scheduler.schedule():
            case Prefill(chunks):
                self._prefill(chunks)
            case Decode(sequences):
                self._decode(sequences)
            case None:
                self._deliver()
                return False
        self._deliver()
        self.counters.steps += 1
        self.counters.busy_seconds += time.perf_counter() - began
        return True

    def end_all(self, reason: EndReason) -> None:
        """End every call: at shutdown, or when the model failed."""
        self._drain()
        for ticket in list(self._tickets.values()):
            self._end(ticket, reason)
        self._deliver()

    def _drain(self) -> None:
        """Take in new calls, end cancelled ones and fill the free slots, before anything else is computed."""
        calls, cancels = self.mailbox.drain()
        for ticket in calls:
            self._tickets[ticket.sequence] = ticket
            self.scheduler.add(ticket.sequence)
        for ticket in cancels:
            self.counters.cancels += 1
            self._end(ticket, "cancelled")
        self.counters.started += self.scheduler.admit()
        if cancels:
            self._deliver()  # a caller that waits for the release need not wait for the forward too
        self._gate.drained()

    # Run

    def _prefill(self, chunks: list[tuple[Sequence, int]]) -> None:
        sequences = [sequence for sequence, _ in chunks]
        rows = [(s, s.cached, s.tokens[s.cached : s.cached + count]) for s, count in chunks]
        scores = self.model.forward(Batch.of(rows, self._options.block_tokens, every=False))
        for sequence, count in chunks:
            sequence.cached += count
            self.counters.prompt_tokens += count
        if any(s.request.embed for s in sequences):
            self._embed(scores, sequences)
        prompt_done = [s.cached == len(s.tokens) and not s.request.embed for s in sequences]
        if any(prompt_done):
            chosen = scores.choose(self._luck(sequences, 1)).tolist()
            self._extend(scores, sequences, [row if done else [] for row, done in zip(chosen, prompt_done, strict=True)])
        if self.drafter is not None and self.drafter.reads:
            self._drain()
            running = [s for s in sequences if s.running and not s.request.embed]
            if running:
                self.drafter.read(running)

    def _embed(self, scores: Scores, sequences: list[Sequence]) -> None:
        """Add up the states of the tokens just read; deliver the vector of each finished prompt and free its slot."""
        for sequence, row in zip(sequences, scores.sums(), strict=True):
            if not sequence.request.embed:
                continue
            sequence.states = row if sequence.states is None else sequence.states + row
            if sequence.cached == len(sequence.tokens):
                ticket, size = self._tickets[sequence], float(np.linalg.norm(sequence.states))
                if not ticket.cancelled:
                    self._outbox.append((ticket.on_event, Vector(sequence.states / np.float32(size or 1.0))))
                self._end(ticket, "cancelled" if ticket.cancelled else "stop")

    def _decode(self, sequences: list[Sequence]) -> None:
        if self.drafter is not None:
            sequences = self._draft(self.drafter, sequences)
        if not sequences:
            return  # all of them were cancelled during the draft
        rows = [(s, s.cached, [s.tokens[-1], *s.draft]) for s in sequences]
        scores = self.model.forward(Batch.of(rows, self._options.block_tokens, every=True))
        drafts = [s.draft for s in sequences]
        for sequence in sequences:
            sequence.draft = []
        chosen = scores.choose(self._luck(sequences, 1 + max(map(len, drafts)))).tolist()
        agreed = [_agreed(row, draft) for row, draft in zip(chosen, drafts, strict=True)]
        for sequence, draft, tokens in zip(sequences, drafts, agreed, strict=True):
            sequence.drafted += len(draft)
            sequence.accepted += len(tokens) - 1
        self.counters.drafted += sum(map(len, drafts))
        self.counters.accepted += sum(len(tokens) - 1 for tokens in agreed)
        self._extend(scores, sequences, agreed)

    def _draft(self, drafter: Drafter, sequences: list[Sequence]) -> list[Sequence]:
        """Run the drafter in a bounded loop and return the sequences that were not cancelled meanwhile."""
        for _ in range(drafter.steps):
            drafting = [s for s in sequences if s.running and len(s.draft) < s.limit - len(s.tokens) - 1]
            if not drafting:
                break
            drafter.step(drafting, lambda rows: self._luck(rows, 1))
            self._drain()
        running = [s for s in sequences if s.running]
        for sequence in running:
            del sequence.draft[max(0, sequence.limit - len(sequence.tokens) - 1) :]
        return running

    def _luck(self, sequences: list[Sequence], places: int) -> Luck:
        """Return how to sample at the next places after each sequence's tokens and guesses."""
        requests = [sequence.request for sequence in sequences]
        seeds = np.array([[request.seed] for request in requests], np.uint64)
        places_after = [range(s.answered + len(s.draft), s.answered + len(s.draft) + places) for s in sequences]
        return Luck(
            np.array([request.temperature for request in requests], np.float32),
            np.array([request.top_p for request in requests], np.float32),
            place_seeds(seeds, np.array(places_after, np.uint64)),
        )

    # Postprocess

    def _extend(self, scores: Scores, sequences: list[Sequence], tokens: list[list[int]]) -> None:
        """Append the new tokens to each sequence. The last new token is not in the cache yet."""
        for sequence, new in zip(sequences, tokens, strict=True):
            if new:
                sequence.tokens += new
                sequence.cached = len(sequence.tokens) - 1
        if self.drafter is not None:
            self.drafter.verified(scores, sequences, np.array([max(0, len(new) - 1) for new in tokens], np.int32))
        for row, (sequence, new) in enumerate(zip(sequences, tokens, strict=True)):
            if new:
                self._emit(self._tickets[sequence], new, scores, row)

    def _emit(self, ticket: Submission, new: list[int], scores: Scores, row: int) -> None:
        """Send the new tokens to the call's `on_event`, and end the call if the answer ends among them."""
        sequence, request, writer = ticket.sequence, ticket.sequence.request, ticket.writer
        if ticket.cancelled:
            self.counters.tokens_dropped += len(new)
            return  # the next drain ends the call
        text, emitted, reason, choices = "", 0, None, []
        for place, token in enumerate(new):
            if token in self.model.eos and not request.ignore_eos:
                reason = "stop"
                break
            text += writer.push(token)
            emitted += 1
            if request.logprobs is not None:
                logprob, top = scores.logprobs(row, place, token, request.logprobs)
                choices.append(Choice(token, logprob, tuple(top)))
            if writer.stop:
                reason = "stop"
                break
        if reason is None and len(sequence.tokens) >= sequence.limit:
            reason = "length"
        if reason is not None:
            text += writer.flush()
        self.counters.tokens += emitted
        self.counters.tokens_dropped += len(new) - emitted
        if emitted or text:
            self._outbox.append((ticket.on_event, Progress(text, emitted, tuple(choices))))
        if reason is not None:
            del sequence.tokens[len(sequence.tokens) - len(new) + emitted :]
            self._end(ticket, "length" if reason == "length" else "stop")

    def _end(self, ticket: Submission, reason: EndReason) -> None:
        sequence = ticket.sequence
        started = sequence.running
        if not self.scheduler.end(sequence, reason):
            return  # the call ended by itself before its cancel arrived
        match reason:
            case "cancelled" if started:
                self.counters.cancelled_running += 1
                self._remember_cut(sequence.request.name, sequence.answered)
            case "cancelled":
                self.counters.cancelled_waiting += 1
            case "failed":
                self.counters.failed += 1
            case _:
                self.counters.finished += 1
        self._ended += 1
        del self._tickets[sequence]
        counts = sequence.answered, sequence.drafted, sequence.accepted, ticket.writer.stop
        ended = GenerationEnded(reason, len(sequence.request.prompt), *counts)
        self._outbox.append((ticket.on_event, ended))

    def _remember_cut(self, name: str, tokens: int) -> None:
        """Add a cancelled call to `cut`. The count includes the tokens of a forward that was running at the cancel."""
        self.cut[name] = self.cut.pop(name, 0) + tokens
        if len(self.cut) > _CUT_REMEMBERED_MAX:
            del self.cut[next(iter(self.cut))]

    def _deliver(self) -> None:
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            self._post(outbox)


def _agreed(chosen: list[int], draft: list[int]) -> list[int]:
    """Return the chosen tokens up to and including the first one that differs from the draft: later ones are invalid."""
    matching = 0
    while matching < len(draft) and chosen[matching] == draft[matching]:
        matching += 1
    return chosen[: matching + 1]
