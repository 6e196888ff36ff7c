"""What a probe may spend: calls, tokens of prompts and answers, seconds. The caller passes the time in."""

from __future__ import annotations

from dataclasses import dataclass


class BudgetSpent(Exception):
    """There is not enough left for what was asked."""


@dataclass(slots=True)
class ProbeBudget:
    calls_max: int = 1_000
    tokens_max: int = 150_000
    seconds_max: float = 600.0
    calls: int = 0
    tokens: int = 0  # sent and asked for; an answer may be shorter

    def take(self, tokens: int, calls: int = 1) -> None:
        """Take calls before they are sent, each with its prompt and its maximum; raise `BudgetSpent` if they do not fit."""
        if self.calls + calls > self.calls_max:
            raise BudgetSpent(f"the budget of {self.calls_max} calls (--max-calls)")
        if self.tokens + tokens > self.tokens_max:
            raise BudgetSpent(f"the budget of {self.tokens_max} tokens (--max-tokens)")
        self.calls += calls
        self.tokens += tokens

    def check_time(self, elapsed_s: float) -> None:
        if elapsed_s >= self.seconds_max:
            raise self.out_of_time()

    def out_of_time(self) -> BudgetSpent:
        return BudgetSpent(f"the budget of {self.seconds_max:g} s (--max-seconds)")
