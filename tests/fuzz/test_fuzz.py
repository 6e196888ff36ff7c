"""The fuzzer itself: it runs for some seconds, and finds faults that are there."""

from __future__ import annotations

import itertools

import pytest

from fuzz import parts
from fuzz.grammar import Dice
from fuzz.run import Report, at_rest, batch, fuzz, running
from hangup.gateway.http.sse import Splitter


def test_some_seconds_find_nothing() -> None:
    report = fuzz(6, seed=1, say=lambda _: None)
    assert report.found == []
    assert {"parts", "odd_call", "odd_answer", "checked_call"} <= report.counts.keys()


def test_what_once_was_found_is_mended() -> None:
    assert parts.try_corpus() == []


def test_a_case_is_its_number() -> None:
    for number in range(50):
        assert Dice(number).request(number) == Dice(number).request(number)
        assert Dice(number).answer(number) == Dice(number).answer(number)


def test_a_planted_fault_in_a_part_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Splitter.feed

    def forgetful(self: Splitter, payload: bytes) -> list[bytes]:
        return right(self, payload.removeprefix(b"\n"))

    monkeypatch.setattr(Splitter, "feed", forgetful)
    assert any(parts.try_one(number, {"events": parts.events}) for number in range(2000))


def test_calls_that_get_the_wrong_answer_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A desync: the engine sends one caller's words to another."""
    monkeypatch.setattr("fuzz.engine._CHECK", __import__("re").compile(rb"check-(\d)\d*\."))
    report = Report()
    with running() as (gateway, _):
        before = gateway.open_files(), 0
        batch(gateway, itertools.count(10**6), 1.0, report)
        assert any(row.startswith("check ") for row in report.found)
        assert [row for row in at_rest(gateway, before) if "memory" not in row] == []
