"""`Ticket`: a call as admission sees it."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

from hangup.core.admission.backend_load import BackendLoad
from hangup.core.admission.patience import Patience
from hangup.core.admission.tenant_queue import ANYWHERE, NOBODY
from hangup.core.admission.tenants import Tenant

K = TypeVar("K")


class Ticket(Generic[K]):
    """What a call asks for, and what it holds; `key` is the creator's own object for the call.

    A ticket is nowhere, in the queue (`queued`) or on a backend (`placed_on`). Code that moves it keeps both consistent.
    """

    __slots__ = (
        "all_by",
        "arrived_at",
        "awaits_first_token",
        "blind",
        "blocking_tokens",
        "calls_ahead",
        "charge",
        "choices",
        "client",
        "curves",
        "eligible",
        "engine_mark",
        "engine_s",
        "first_by",
        "first_token_at",
        "had_free_slot",
        "job",
        "key",
        "kv",
        "order",
        "output_max",
        "overdue",
        "overdue_at",
        "patience_s",
        "placed_on",
        "prompt",
        "queue_by",
        "queue_group",
        "queued",
        "queued_at",
        "retry",
        "sent_at",
        "size",
        "stream",
        "tenant",
        "tokens_to_read",
        "tried",
        "unqueued",
        "whole",
        "yields",
    )

    def __init__(
        self,
        key: K,
        prompt: int = 0,
        output_max: int = 0,
        choices: int = 1,
        stream: bool = True,
        first_by: float = math.inf,
        all_by: float = math.inf,
        queue_by: float = math.inf,
        size: int = 0,
        retry: bool = False,
        blind: bool = False,
        whole: bool = False,
        job: bool = False,
        eligible: frozenset[str] | None = None,
        client: str = "",
        yields: int = 0,
    ) -> None:
        self.key = key
        self.prompt = prompt  # tokens, as far as known
        self.output_max = output_max  # tokens of each answer
        self.choices = choices
        self.stream = stream
        self.first_by = first_by  # when the client gives up waiting for the first token,
        self.all_by = all_by  # for the whole answer,
        self.queue_by = queue_by  # and when we take it out of the queue
        self.patience_s = math.inf  # how long its client would wait, from its arrival
        self.size = size  # bytes that it holds while it waits
        self.retry = retry  # the client's SDK says that this is not the first attempt
        self.blind = blind  # its answer comes in one piece, and its duration cannot be predicted
        self.whole = whole  # its answer comes in one piece, in a time that depends on the input: embeddings and the like
        self.job = job  # an item of a job: no client waits for it, so it yields to live calls
        self.client = client  # the kind of client, as it names itself
        self.yields = yields  # how often this item of a job has yielded
        self.arrived_at = 0.0
        self.curves: tuple[Patience, Patience] | None = None  # the patience curves that learn from it while its client waits
        self.blocking_tokens = 0 if job else prompt  # prompt tokens that other calls have to wait for
        self.tenant: Tenant[Ticket[K]] | None = None
        self.eligible = eligible  # names of the backends that can answer it; None: any
        self.tried = NOBODY  # names of the backends that failed it
        self.queue_group = ANYWHERE  # both of these, as of when it was queued
        self.order = 0  # its number in the queue
        self.queued = False
        self.queued_at = 0.0
        self.placed_on: BackendLoad | None = None
        self.sent_at = 0.0
        self.engine_mark = 0.0  # for its share of its backend's time
        self.engine_s = 0.0  # its share so far, on all backends it was on
        self.awaits_first_token = False  # sent, and without a first token
        self.first_token_at = 0.0  # 0 before that
        self.tokens_to_read = 0  # prompt tokens to be read before its first token: its own and those ahead of it
        self.calls_ahead = 0  # calls without a first token that were sent to the same backend before it
        self.had_free_slot = False  # there was a slot for it when it was sent, as far as had been seen
        self.overdue_at = math.inf  # when its first token becomes overdue,
        self.overdue = False  # and whether it has
        self.unqueued = False  # no call was ahead of it: its first-token time is the engine's own
        self.charge = 0.0  # weighted tokens charged to its tenant
        self.kv = 0  # tokens of the engine's cache reserved for it

    def __repr__(self) -> str:
        where = "queued" if self.queued else self.placed_on.name if self.placed_on else "nowhere"
        return f"<ticket {self.key!r} {where}>"
