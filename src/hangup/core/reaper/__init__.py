"""Decides whether an engine has stopped abandoned work, and what to do if it has not. No I/O.

`EngineStatus` is what an engine reports. `PendingStops` holds the calls that ended while the engine worked on them, and decides
from that report which of them have stopped. `Ladder` decides what to do about the rest.
"""

from hangup.core.reaper.engine_status import EngineStatus, Slot
from hangup.core.reaper.given_stops import GivenStops
from hangup.core.reaper.ladder import STEPS, Ladder, LadderStep, LadderTerms, Rung
from hangup.core.reaper.orphans import Means, Orphans
from hangup.core.reaper.pending_stops import PendingStop, PendingStops, StopAccount, StopState
from hangup.core.reaper.stillness import Stillness, Waiting, reading_s

__all__ = [
    "STEPS",
    "EngineStatus",
    "GivenStops",
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
    "StopAccount",
    "StopState",
    "Waiting",
    "reading_s",
]
