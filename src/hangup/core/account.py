"""Accounts for what calls cost, who pays, and how much of it was wasted or saved."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final, NamedTuple

from hangup.core.call import Call
from hangup.core.ledger import delivered
from hangup.core.reasons import Outcome

# Python 3.11 takes as long for a member of an enum as for a function call.
_COMPLETED: Final = Outcome.COMPLETED
_ENGINE_REFUSED: Final = Outcome.ENGINE_REFUSED
ZOMBIE: Final = "zombie"  # the cause for tokens that no call's end explains
# Outcomes that spare the engine the rest of an answer.
_SPARING: Final = frozenset([Outcome.CLIENT_GONE, Outcome.DEADLINE, Outcome.CAP, Outcome.KILLED, Outcome.DRAINED])


class Price(NamedTuple):
    """The price of a backend; either part, or both."""

    per_hour: float = 0.0
    per_million_tokens: float = 0.0

    def of(self, engine_s: float, tokens: float) -> float:
        return engine_s / 3600 * self.per_hour + tokens / 1e6 * self.per_million_tokens


FREE: Final = Price()


@dataclass(slots=True)
class Account:
    """The sum over calls of one tenant, model, backend and outcome. It counts the tokens that we received from the engine."""

    calls: int = 0
    tokens_in: int = 0
    tokens_delivered: int = 0
    tokens_wasted: int = 0
    tokens_saved: int = 0  # an estimate of the rest of the answers
    engine_s: float = 0.0
    engine_wasted_s: float = 0.0
    money: float = 0.0
    money_wasted: float = 0.0
    money_saved: float = 0.0  # an estimate as well
    tokens_estimated: int = 0  # of those wasted: attributed by estimate, as a share by time of what several zombies computed

    def add_call(self, call: Call, engine_s: float, predicted_tokens: float, price: Price) -> None:
        """Add a call at its end. `predicted_tokens` is the average length of such answers."""
        assert call.reason is not None
        tokens, outcome = call.tokens_out, call.reason.outcome
        money = price.of(engine_s, tokens) if price is not FREE else 0.0
        self.calls += 1
        self.tokens_in += call.tokens_in or 0
        self.engine_s += engine_s
        self.money += money
        if outcome is _COMPLETED or outcome is _ENGINE_REFUSED:
            self.tokens_delivered += tokens
            return
        got = delivered(call)
        if got:
            self.tokens_delivered += tokens
        else:
            self.tokens_wasted += tokens
        if not got or not tokens:
            self.engine_wasted_s += engine_s
            self.money_wasted += money
        spared, spared_money = saved(call, predicted_tokens, money)
        self.tokens_saved += spared
        self.money_saved += spared_money

    def add(self, other: Account) -> None:
        for name in _FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_wasted(self) -> Account:
        """Return a copy as if nothing had been delivered."""
        wasted = self.tokens_wasted + self.tokens_delivered
        return replace(self, tokens_delivered=0, tokens_wasted=wasted, engine_wasted_s=self.engine_s, money_wasted=self.money)


_FIELDS: Final = [field.name for field in fields(Account)]


def saved(call: Call, predicted_tokens: float, money: float) -> tuple[int, float]:
    """Return the tokens and the money that the call's end has saved, if its engine stopped."""
    if call.outcome not in _SPARING or call.sent_at is None or call.engine_finished:
        return 0, 0.0
    tokens = max(int(predicted_tokens) - call.tokens_out, 0)
    return tokens, tokens * money / call.tokens_out if call.tokens_out else 0.0


class Entry(NamedTuple):
    """A change to an account apart from a call's end: a job's item, whose result must be stored first, or tokens that no call
    explains."""

    tenant: str
    model: str
    backend: str
    cause: str  # the outcome, or `ZOMBIE`
    account: Account


def entry(call: Call, engine_s: float, predicted_tokens: float, price: Price) -> Entry:
    """Return the account of one ended call as an `Entry`."""
    assert call.reason is not None
    account = Account()
    account.add_call(call, engine_s, predicted_tokens, price)
    return Entry(call.tenant, call.model, call.backend, call.reason.outcome.value, account)


def unexplained(backend: str, tokens: int) -> Entry:
    """Return an `Entry` for tokens that an engine computed and never sent: for ended calls whose shares are unknown."""
    return Entry("", "", backend, ZOMBIE, Account(tokens_wasted=tokens))
