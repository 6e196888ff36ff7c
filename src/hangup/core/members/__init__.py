"""What several gateway processes share: who is alive, how many places each may use, and the calls of one that died.

Each process is a member. One hub holds the state of all members (`Members`, `PlaceAllocator`); a member holds only its own part
(`Allotments`). They exchange messages, which may come late or, but for those of one connection, not at all:

    member ── report: what I hold, and what I would use ──▶ hub
      ◀────────── grant: what you may use ───────────────────┘

A call never waits for a message: a member admits calls within what it was granted, and everybody keeps what he has while the
hub is away. Nothing here knows whether the hub is a parent process on this host or a store that several hosts share.
"""

from hangup.core.members.allotments import Allotments, Grant, PlaceAllocator, PlaceReport
from hangup.core.members.holdings import backend_places, needs_places, new_under_old_names
from hangup.core.members.lead import Lead, LeadWatch
from hangup.core.members.learned import (
    LearnedFigures,
    LearnedPlaces,
    WholeFigures,
    learned_figures,
    shared_limits,
    take_observations,
)
from hangup.core.members.members import LeftCall, LeftCalls, Members
from hangup.core.members.quotas import HELD_S, QuotaShares
from hangup.core.members.shares import equal_part, fair_shares, part_alone
from hangup.core.members.stop_records import EndedCall, RecordChanges, StopFinding, StopRecords
from hangup.core.members.tallies import PeakLog, Sum, Tally, WholeCount
from hangup.core.members.tenant_service import ServedElsewhere, TenantUse, tenant_uses
from hangup.core.members.token_bank import TokenBank, TokenLevel, TokensCharged
from hangup.core.members.token_sums import TokenRow, TokenSums

__all__ = [
    "HELD_S",
    "Allotments",
    "EndedCall",
    "Grant",
    "Lead",
    "LeadWatch",
    "LearnedFigures",
    "LearnedPlaces",
    "LeftCall",
    "LeftCalls",
    "Members",
    "PeakLog",
    "PlaceAllocator",
    "PlaceReport",
    "QuotaShares",
    "RecordChanges",
    "ServedElsewhere",
    "StopFinding",
    "StopRecords",
    "Sum",
    "Tally",
    "TenantUse",
    "TokenBank",
    "TokenLevel",
    "TokenRow",
    "TokenSums",
    "TokensCharged",
    "WholeCount",
    "WholeFigures",
    "backend_places",
    "equal_part",
    "fair_shares",
    "learned_figures",
    "needs_places",
    "new_under_old_names",
    "part_alone",
    "shared_limits",
    "take_observations",
    "tenant_uses",
]
