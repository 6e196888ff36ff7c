"""Counts the tokens that this process received from each engine."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hangup.core.account import ZOMBIE
from hangup.core.members import TokenRow
from hangup.gateway.accounting import Accounting
from hangup.gateway.backends.backend import Backend
from hangup.gateway.client_request import ClientRequest
from hangup.gateway.registry import CallRegistry


class TokensSeen(NamedTuple):
    """What this process received from its backends until now."""

    arrived: Counter[str]  # tokens, by the backend's name,
    unseen: Counter[str]  # and those that live calls may have received unseen
    textless: set[Backend]  # those with live calls without tokens, such as embeddings


def tokens_seen(accounting: Accounting, registry: CallRegistry[ClientRequest]) -> TokensSeen:
    """Return what arrived from all backends, by one look at all live calls."""
    seen = TokensSeen(Counter(), Counter(), set())
    for (_, backend, fate), count in accounting.ledger.tokens.items():
        seen.arrived[backend] += count if fate != ZOMBIE else 0
    for flow in registry.live.values():
        seen.arrived[flow.call.backend] += flow.call.tokens_out
        ticket = flow.ticket
        if ticket is not None and ticket.blind and ticket.placed_on is not None:
            seen.unseen[flow.call.backend] += ticket.output_max * ticket.choices
        if not flow.counts_tokens and flow.backend is not None:
            seen.textless.add(flow.backend)
    return seen


def token_row(backend: Backend, seen: TokensSeen, now: float) -> TokenRow:
    """Return what this process received from one backend until now."""
    name, time_of = backend.name, backend.load.time
    time_of.pass_until(now)
    # Tokens per second say nothing about calls without tokens.
    textless = backend in seen.textless
    return TokenRow(seen.arrived[name], seen.unseen[name], time_of.call_s, time_of.busy_s, time_of.count, textless)
