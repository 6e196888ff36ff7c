"""Who may start, where, and who waits or is refused: the decisions, without sockets, clocks or tasks.

Start at `admission.py`; it asks `queue.py` who is next, `fleet.py` where there is room, and `foresight.py` whether a call can
still reach its client in time, by `estimates.py` and by how long clients wait (`patience.py`). `jobs.py` is the second line, of
work that no client waits for. `seat.py` is one backend, and `limiter.py` learns how much it can run when nobody has said.
"""

from hangup.core.admission.admission import Action, Admission
from hangup.core.admission.backend_load import NO_LIMIT, BackendLoad
from hangup.core.admission.fleet import Fleet
from hangup.core.admission.limiter import Evidence
from hangup.core.admission.tenants import Band, TenantTerms
from hangup.core.admission.ticket import AnyTicket, Ticket

__all__ = ["NO_LIMIT", "Action", "Admission", "AnyTicket", "BackendLoad", "Band", "Evidence", "Fleet", "TenantTerms", "Ticket"]
