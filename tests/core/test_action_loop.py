"""Admission's actions are carried out one by one, however long the chain and whatever fails in it."""

from __future__ import annotations

from typing import Any

from hangup.core.admission import Action, Ticket
from hangup.gateway.actions import ActionLoop


def action(key: int) -> Action[Any]:
    return Action(Ticket(key), None, None)


def test_a_chain_of_decisions_is_no_recursion() -> None:
    done: list[int] = []

    def carry_out(it: Action[Any]) -> None:
        done.append(it.ticket.key)
        if it.ticket.key < 5000:
            loop.run([action(it.ticket.key + 1)])

    loop = ActionLoop(carry_out, lambda it, error: done.append(-1))
    loop.run([action(0)])
    assert done == list(range(5001))


def test_one_that_fails_stops_no_other() -> None:
    done: list[int] = []
    failed: list[tuple[int, str]] = []

    def carry_out(it: Action[Any]) -> None:
        if it.ticket.key == 1:
            loop.run([action(9)])
            raise ValueError("broken")
        done.append(it.ticket.key)

    loop = ActionLoop(carry_out, lambda it, error: failed.append((it.ticket.key, str(error))))
    loop.run([action(0), action(1), action(2)])
    assert done == [0, 2, 9]
    assert failed == [(1, "broken")]
    loop.run([action(3)])
    assert done == [0, 2, 9, 3]
