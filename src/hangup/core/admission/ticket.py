"""A call as the admission sees it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from hangup.core.admission.backend_load import BackendLoad
    from hangup.core.admission.patience import Patience
    from hangup.core.admission.tenants import Tenant

K = TypeVar("K")
NOBODY: frozenset[str] = frozenset()
Where = tuple[frozenset[str] | None, frozenset[str]]  # of the seats only these (None: any), and none of those
ANYWHERE: Where = (None, NOBODY)


class Ticket(Generic[K]):
    """What a call asks for, and what it holds; `key` is the call itself, as whoever made the ticket knows it.

    It is nowhere, in the queue (`queued`) or on a seat, and whoever moves it keeps these in step.
    """

    __slots__ = (
        "ahead",
        "all_by",
        "arrived_at",
        "behind",
        "blind",
        "charge",
        "choices",
        "client",
        "curves",
        "engine_mark",
        "engine_s",
        "first_by",
        "first_token_at",
        "free",
        "job",
        "key",
        "kv",
        "late",
        "late_at",
        "order",
        "output_max",
        "patience_s",
        "prompt",
        "queue_by",
        "queued",
        "queued_at",
        "reading",
        "retry",
        "seat",
        "seats",
        "sent_at",
        "size",
        "stream",
        "tenant",
        "tried",
        "unqueued",
        "where",
        "whole",
        "work",
        "yields",
    )

    def __init__(
        self,
        key: K,
        *,
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
        seats: frozenset[str] | None = None,
        client: str = "",
        yields: int = 0,
    ) -> None:
        self.key = key
        self.prompt = prompt  # tokens, as far as known
        self.output_max = output_max  # tokens of each answer
        self.choices = choices
        self.stream = stream
        self.first_by = first_by  # when the client gives up on the first token,
        self.all_by = all_by  # on the whole answer,
        self.queue_by = queue_by  # and when we do not let it wait any longer
        self.patience_s = math.inf  # how long its client would wait when it came
        self.size = size  # bytes it holds while it waits
        self.retry = retry  # the client's SDK says that this is not its first attempt
        self.blind = blind  # nothing is seen of its answer before the end, and nothing tells when that should come
        self.whole = whole  # its answer comes as one, in a time that depends on what is sent: embeddings and the like
        self.job = job  # an item of a job: nobody waits at the other end, so it yields to those who have somebody
        self.client = client  # what kind of client it is, by its own word
        self.yields = yields  # times that this item of a job had to make way
        self.arrived_at = 0.0
        self.curves: tuple[Patience, Patience] | None = None  # that its client's patience is learned by, while it waits
        self.ahead = 0 if job else prompt  # tokens that others have to wait for while they are read
        self.tenant: Tenant | None = None
        self.seats = seats  # those that can answer it, by name; None: any
        self.tried = NOBODY  # seats that failed it
        self.where = ANYWHERE  # both of these, as they were when it was put in line
        self.order = 0  # its number in line
        self.queued = False
        self.queued_at = 0.0
        self.seat: BackendLoad | None = None
        self.sent_at = 0.0
        self.engine_mark = 0.0  # for its share of its seat's time
        self.engine_s = 0.0  # its share so far, of all seats it was on
        self.reading = False  # sent, and its first token has not come
        self.first_token_at = 0.0  # 0 before it came
        self.work = 0  # prompt tokens before its first token: its own and those ahead of it
        self.behind = 0  # calls without a first token that were sent there before it
        self.free = False  # when it was sent, there was a slot for it, as far as had been seen
        self.late_at = math.inf  # when its first token is overdue,
        self.late = False  # and that it was
        self.unqueued = False  # nothing was ahead of it: its first-token time is the engine's own
        self.charge = 0.0  # what its tenant was charged
        self.kv = 0  # tokens of the engine's cache set aside for it

    def __repr__(self) -> str:
        where = "queued" if self.queued else self.seat.name if self.seat else "nowhere"
        return f"<ticket {self.key!r} {where}>"


AnyTicket = Ticket[Any]  # where it does not matter whose it is
