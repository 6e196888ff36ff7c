"""Who may start, where, and who waits or is refused: the decisions, without sockets, clocks or tasks.

Start at `admission.py`; it asks `queue.py` who is next, `fleet.py` where there is room, and `estimates.py` whether a call
can still reach its client in time. `jobs.py` is the second line, of work that no client waits for. `limiter.py` learns how
much an engine can run when nobody has said, and `patience.py` how long clients wait.
"""

from hangup.core.admission.admission import Action, Admission
from hangup.core.admission.fleet import NO_LIMIT, Fleet, Seat
from hangup.core.admission.limiter import Evidence
from hangup.core.admission.tenants import Band, Terms
from hangup.core.admission.ticket import Ticket

__all__ = ["NO_LIMIT", "Action", "Admission", "Band", "Evidence", "Fleet", "Seat", "Terms", "Ticket"]
