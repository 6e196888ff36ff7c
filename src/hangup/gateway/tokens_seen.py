"""Counts the tokens that this process received from each engine."""

from __future__ import annotations

from collections import Counter

from hangup.core.account import ZOMBIE
from hangup.core.members import TokenRow
from hangup.gateway.accounting import Accounting
from hangup.gateway.backends.backend import Backend
from hangup.gateway.client_request import ClientRequest
from hangup.gateway.registry import CallRegistry


def tokens_seen(accounting: Accounting, registry: CallRegistry[ClientRequest]) -> tuple[Counter[str], Counter[str]]:
    """Return, per backend, the tokens that arrived, and those that live calls may have received unseen."""
    seen: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    for (_, backend, fate), count in accounting.ledger.tokens.items():
        seen[backend] += count if fate != ZOMBIE else 0
    for flow in registry.live.values():
        seen[flow.call.backend] += flow.call.tokens_out
        ticket = flow.ticket
        if ticket is not None and ticket.blind and ticket.placed_on is not None:
            unseen[flow.call.backend] += ticket.output_max * ticket.choices
    return seen, unseen


def token_row(backend: Backend, registry: CallRegistry[ClientRequest], seen: int, unseen: int, now: float) -> TokenRow:
    """Return what this process received from one backend until now."""
    time_of = backend.load.time
    time_of.pass_until(now)
    live = (flow for flow in registry.live.values() if flow.backend is backend)
    # Calls without tokens, such as embeddings: tokens per second say nothing about them.
    return TokenRow(seen, unseen, time_of.call_s, time_of.busy_s, time_of.count, not all(flow.counts_tokens for flow in live))
