"""Decides which call starts, on which backend, and which call waits or is refused. No sockets, clocks or tasks.

Start at `admission.py`. It asks `queue.py` who is next, `fleet.py` where there is room, and `foresight.py` whether an answer
can still reach its client in time. `backend_load.py` is one backend (`BackendLoad`), `health.py`
says whether that backend gets calls at all, `limiter.py` learns how much it can run when nobody has configured it, and
`job_queue.py` is the second queue, for work that no client waits for.

Theory of operation

Unknown is not full. A backend whose slots are neither configured nor reported by the engine gets every call until there is
evidence that calls queue inside the engine (up to `COLD_MAX` before its very first token). A guessed limit would refuse calls
that the engine would have served. So every estimate can say "not known", and that is never a reason to refuse. While any
backend that can answer a call is in this state (`Fleet.is_cold`), the call is not refused because many calls wait; only the
bytes in the queue are bounded.

Evidence (`limiter.py`). Four things show that an engine queues or is overloaded: it reports waiting calls; it refuses calls
(429, 529, or 503 with a time to come back); first tokens come late for their prompt size, or are overdue; steps are slow, and
fewer calls make them quicker. The first and the third bound the number of calls *without a first token*, because a call whose
first token has come is certainly running, while one without may be in the engine's own queue. Refusals and slow steps bound the
number of calls. Evidence also expires: first tokens that come on time raise the limit, and a limit that holds nobody back is
dropped while calls are on time.

Queue order (`queue.py`). Calls wait here and not in the engine, because here they can still be reordered, dropped or refused.
Bands go in strict order. Within a band, the tenant that has received the least service for its weight goes next. Within a
tenant, calls go first come, first served while the queue moves; once its oldest call has waited too long, the newest goes
first, because its client is the most likely to be still there when the answer comes.

Patience (`patience.py`, `foresight.py`). An answer that comes after its client has left is GPU time for nobody. How long a
client waits is known from its own deadline, or learned as a survival curve per tenant and kind of client. A call is refused
early, with a reason, if the queue drains too slowly for its time limit there or for its tenant's patience, or if first-token
and step times say that the answer would be too late. Learned patience does not count against a call that could start at once on
a backend with no evidence of queueing: there, only the deadline that the client stated does.
"""

from hangup.core.admission.admission import Action, Admission
from hangup.core.admission.backend_load import BackendLoad
from hangup.core.admission.fleet import Fleet
from hangup.core.admission.health import BackendHealth, DnsListing, HealthEvent, Trust
from hangup.core.admission.limiter import Evidence
from hangup.core.admission.shared_limit import NO_LIMIT, Observation, SharedLimit, WholeLimit
from hangup.core.admission.tenants import Band, TenantTerms
from hangup.core.admission.ticket import Ticket

__all__ = [
    "NO_LIMIT",
    "Action",
    "Admission",
    "BackendHealth",
    "BackendLoad",
    "Band",
    "DnsListing",
    "Evidence",
    "Fleet",
    "HealthEvent",
    "Observation",
    "SharedLimit",
    "TenantTerms",
    "Ticket",
    "Trust",
    "WholeLimit",
]
