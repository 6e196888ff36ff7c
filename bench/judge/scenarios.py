"""The judges' scenarios, and the engine that they run on."""

from __future__ import annotations

from dataclasses import dataclass, replace

SLOTS, TOKEN_S, PREFILL_S = 8, 0.02, 0.02
PROMPT_TOKENS, OUTPUT_TOKENS = 50, 200
ANSWER_S = PREFILL_S + OUTPUT_TOKENS * TOKEN_S
BOUND_PER_S = SLOTS / ANSWER_S  # answers per second with every slot always in use


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    rate: float
    patience_s: float  # a client disconnects if the whole answer has not arrived by then
    cancelled: float = 0.0  # this share of the clients disconnects in any case
    cancel_after_s: float = 0.0
    seconds: float = 45.0

    @property
    def possible(self) -> int:
        """Return how many whole answers the engine can give in a run, with every slot in use until the last client has left."""
        return SLOTS * int((self.seconds + self.patience_s) / ANSWER_S)

    def lasting(self, seconds: float) -> Scenario:
        return replace(self, seconds=seconds)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("healthy", "healthy: 1.2 calls/s", rate=1.2, patience_s=30.0),
        Scenario("overload", "3 x overload: 6 calls/s, clients leave after 6 s", rate=6.0, patience_s=6.0),
        Scenario(
            "cancelled", "4 calls/s, half of them cancelled after 1 s", 4.0, patience_s=30.0, cancelled=0.5, cancel_after_s=1.0
        ),
    )
}
