"""What one call cost, to whom, and what came of it."""

from __future__ import annotations

from typing import NamedTuple

from hangup.core.call import Call
from hangup.core.ledger import delivered
from hangup.core.reasons import Outcome

ZOMBIE = "zombie"  # the cause of what no call's end explains
# Ends that spare the engine the rest of an answer.
_SPARING = frozenset([Outcome.CLIENT_GONE, Outcome.DEADLINE, Outcome.CAP, Outcome.KILLED, Outcome.DRAINED])


class Price(NamedTuple):
    """Of a backend; either or both."""

    per_hour: float = 0.0
    per_million_tokens: float = 0.0

    def of(self, engine_s: float, tokens: float) -> float:
        return engine_s / 3600 * self.per_hour + tokens / 1e6 * self.per_million_tokens


class Entry(NamedTuple):
    """One call in the books. `cause` is its outcome; tokens are those that were seen to come from the engine."""

    tenant: str
    model: str
    backend: str
    cause: str
    calls: int
    tokens_in: int
    tokens_delivered: int
    tokens_wasted: int
    tokens_saved: int  # an estimate: what the rest of the answer would have been
    engine_s: float
    engine_wasted_s: float
    money: float
    money_wasted: float
    money_saved: float  # an estimate, too


def entry(call: Call, engine_s: float, predicted_tokens: float, price: Price) -> Entry:
    """`predicted_tokens` is how long such answers are on average."""
    assert call.reason is not None
    outcome = call.reason.outcome
    got = delivered(call)
    wasted = 0 if got else call.tokens_out
    in_vain = outcome is not Outcome.COMPLETED and (not got or not call.tokens_out)
    spared = call.sent_at is not None and not call.engine_finished and outcome in _SPARING
    saved = max(int(predicted_tokens) - call.tokens_out, 0) if spared else 0
    money = price.of(engine_s, call.tokens_out)
    per_token = money / call.tokens_out if call.tokens_out else 0.0
    return Entry(
        call.tenant,
        call.model,
        call.backend,
        outcome.value,
        1,
        call.tokens_in or 0,
        call.tokens_out - wasted,
        wasted,
        saved,
        engine_s,
        engine_s if in_vain else 0.0,
        money,
        money if in_vain else 0.0,
        saved * per_token,
    )


def nobodys(backend: str, tokens: int) -> Entry:
    """Tokens that an engine computed and that never came: for calls that had ended, whose share is not known."""
    return Entry("", "", backend, ZOMBIE, 0, 0, 0, tokens, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
