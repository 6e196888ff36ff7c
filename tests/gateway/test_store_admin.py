"""Whom the admin port of a host asks whose workers share their state by a store, and whom it names as silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hangup.gateway.workers.store_admin import StoreWorkersAdmin

ASKED = list[str]()


def worker(
    gateway: str,
    silent: list[str],
    *,
    reaches_store: bool = True,
    answers: bool = True,
    status: int = 200,
    meanwhile: Callable[[], None] = lambda: None,
) -> Any:
    async def ask(method: str, target: str, within_s: float) -> tuple[int, str] | None:
        ASKED.append(gateway)
        meanwhile()
        if status != 200:
            return status, "{}"
        more = {"gateways_silent": silent} if silent else {}
        return (200, json.dumps({"ids": [gateway], **more})) if answers else None

    return SimpleNamespace(ask=ask, gateway=gateway, reaches_store=reaches_store)


def ask(*workers: Any) -> tuple[list[str], list[str], list[str]]:
    """Return who was asked, whose answers there are, and who is named as silent."""
    whole: Any = SimpleNamespace(answering_workers=lambda: list(workers), silent_slots=list)
    admin = StoreWorkersAdmin(whole)
    ASKED.clear()
    values: Any = asyncio.run(admin.ask_merged("GET", "/api/ids"))
    return list(ASKED), [value["ids"][0] for value in values], list(admin.silence().get("gateways_silent", ()))


def test_one_worker_that_reaches_the_store_answers_for_all() -> None:
    assert ask(worker("a", []), worker("b", [])) == (["a"], ["a"], [])


def test_another_one_is_asked_if_it_does_not_answer() -> None:
    assert ask(worker("a", [], answers=False), worker("b", ["a"])) == (["a", "b"], ["b"], ["a"])


def test_one_that_beats_but_gave_no_answer_to_the_others_is_named() -> None:
    assert ask(worker("a", ["b"]), worker("b", []))[2] == ["b"], "its calls are missing in the answer"


def test_those_that_do_not_reach_it_are_asked_themselves() -> None:
    alone = worker("b", ["a", "elsewhere"], reaches_store=False)
    assert ask(worker("a", ["b"]), alone) == (["b", "a"], ["a", "b"], []), "who reaches the store knows who is silent"
    others = worker("a", ["b", "elsewhere"], reaches_store=False), worker("b", ["a", "elsewhere"], reaches_store=False)
    assert ask(*others) == (["a", "b"], ["a", "b"], ["elsewhere"])


def test_one_that_loses_the_store_while_others_are_asked_is_asked_as_well() -> None:
    last = worker("b", [])
    first = worker("a", [], reaches_store=False, meanwhile=lambda: setattr(last, "reaches_store", False))
    assert ask(first, last)[0] == ["a", "b"]


def test_the_others_are_asked_if_who_answered_has_lost_the_store_meanwhile() -> None:
    first = worker("a", ["b"], meanwhile=lambda: setattr(first, "reaches_store", False))
    assert ask(first, worker("b", [])) == (["a", "b"], ["b", "a"], []), "and who reaches it knows who is silent"


def test_the_others_are_asked_for_a_call_that_one_does_not_know() -> None:
    """It may have lost the store, and not have told so yet."""
    assert ask(worker("a", [], status=404), worker("b", []), worker("c", []))[0] == ["a", "b", "c"]
