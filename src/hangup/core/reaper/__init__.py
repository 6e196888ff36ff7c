"""Whether an engine has let go of work that nobody waits for, and what follows if it has not. No I/O.

`EngineStatus` is what an engine says of itself, `PendingStops` holds the calls that ended while it was at work on them and judges by
that, and `Ladder` decides what is done about those it has not let go of.
"""

from hangup.core.reaper.engine_status import EngineStatus, Slot
from hangup.core.reaper.ladder import Ladder, LadderStep, LadderTerms, Rung
from hangup.core.reaper.orphans import Means, Orphans
from hangup.core.reaper.pending_stops import PendingStop, PendingStops, StopState
from hangup.core.reaper.stillness import Stillness, Waiting, reading_s

__all__ = [
    "EngineStatus",
    "Ladder",
    "LadderStep",
    "LadderTerms",
    "Means",
    "Orphans",
    "PendingStop",
    "PendingStops",
    "Rung",
    "Slot",
    "Stillness",
    "StopState",
    "Waiting",
    "reading_s",
]
