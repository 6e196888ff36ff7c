"""After a departure: calls that stay behind, slots that are lost, rate limits. Engines in the test's own loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hangup.core.reaper import EngineStatus
from hangup.probe import by_echo, session
from hangup.probe.budget import ProbeBudget
from hangup.probe.by_echo import EchoTrials
from hangup.probe.caller import Caller, CallKind
from hangup.probe.cases import CASES
from hangup.probe.echo import QuietTimes
from hangup.probe.endpoint import ProbeError
from hangup.probe.figures import SOURCES
from hangup.probe.meet import Speed, measure_speed
from hangup.probe.session import ProbeOptions, ProbeSession
from hangup.probe.stage import Scene, Stage
from hangup.probe.usage import Charged, UsageRecord, may_have_ended
from hangup.probe.verdict import Judgement, Ruling
from hangup.probe.watch import EngineWatch, StatusLook
from probe.test_stage import _ONE_TOKEN, Engine, OneSlot, play

_LIMITED = b"HTTP/1.1 429 Slow down\r\ncontent-length: 4\r\n\r\nslow"
_STOPPED = Judgement(Ruling.STOPPED, "figures")


def session_of(caller: Caller, stage: Stage, watch: object = None) -> ProbeSession:
    made = ProbeSession(ProbeOptions(caller.endpoint.url, budget=caller.budget), caller, caller, "", lambda *_: None)
    made._stage, made._watch, made._quiet = stage, cast(Any, watch), QuietTimes((0.01,))
    return made


@pytest.mark.parametrize(
    ("left_over", "ruling", "said"),
    [
        ((2, True), Ruling.BROKE, "the engine keeps 2 calls that no client waits for, and computes nothing"),
        ((1, False), Ruling.STOPPED, "the engine still reports 1 call"),
        ((0, True), Ruling.STOPPED, ""),
    ],
    ids=["leak", "others", "old figures"],
)
def test_calls_that_stay_in_the_engine_are_a_finding(left_over: tuple[int, bool], ruling: Ruling, said: str) -> None:
    async def busy(_: float) -> int:
        return 2

    async def after(_: float) -> tuple[int, bool]:
        return left_over

    async def story(caller: Caller, stage: Stage) -> None:
        probe = session_of(caller, stage, SimpleNamespace(until_idle=busy, left_over=after))
        found = await probe._cleared(Scene(CASES["stream-fin"], [], []), _STOPPED)
        assert found.ruling is ruling and found.notes == ((said,) if said else ())
        if ruling is Ruling.BROKE:
            later = await probe._by_figures(CASES["stream-rst"])
            assert later.ruling is Ruling.UNTOLD and "not played: the engine keeps 2 calls" in later.evidence

    play(Engine(_ONE_TOKEN), ProbeBudget(), story)


def test_what_an_engine_keeps_and_whether_it_computes() -> None:
    def watch_of(*tokens: int | None) -> EngineWatch:
        looks = [StatusLook(0.0, 0.0, EngineStatus(work), count) for work, count in zip((3, 2), tokens, strict=True)]

        async def look() -> StatusLook | None:
            return looks.pop(0)

        watch = EngineWatch(cast(Any, None), SOURCES[0], 0)
        watch.look = look  # type: ignore[method-assign]
        return watch

    assert asyncio.run(watch_of(7, 7).left_over(0)) == (2, True)
    assert asyncio.run(watch_of(7, 8).left_over(0)) == (2, False), "it works for somebody"
    assert asyncio.run(watch_of(None, None).left_over(0)) == (2, False), "it does not say"


def test_a_lost_slot_is_seen_though_canaries_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_echo, "_FREE_S", 0.0)

    async def story(caller: Caller, stage: Stage) -> None:
        stage.speed, stage.rest_s = Speed(0.01, 100.0), 0.6
        quiet = QuietTimes((0.01,) * 18)
        assert not await EchoTrials(caller, stage, 3, quiet, 1.0)._all_free()

    class TwoSlots(OneSlot):
        def __init__(self) -> None:
            super().__init__(100.0, whole=100.0)
            self._slot = cast(Any, asyncio.Semaphore(2))

    play(TwoSlots(), ProbeBudget(), story)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_RATE_LIMIT_PAUSE_S", 0.01)
    monkeypatch.setattr(session, "_RATE_LIMIT_S", 0.1)


@pytest.mark.usefixtures("hasty")
def test_a_rate_limit_that_does_not_end_is_no_breakdown() -> None:
    async def story(caller: Caller, stage: Stage) -> None:
        probe = session_of(caller, stage)
        found = await probe._still_serves(_STOPPED)
        assert found.ruling is Ruling.STOPPED and found.notes == ("a rate limit refuses calls: HTTP 429: slow",)
        later = await probe._judged(CASES["stream-fin"])
        assert later.ruling is Ruling.UNTOLD and "not played: a rate limit" in later.evidence

    play(Engine(_LIMITED), ProbeBudget(), story)


@pytest.mark.usefixtures("hasty")
def test_a_rate_limit_is_waited_for() -> None:
    async def story(caller: Caller, stage: Stage) -> None:
        assert await session_of(caller, stage)._still_serves(_STOPPED) == _STOPPED

    engine = Engine(_LIMITED, _LIMITED, _ONE_TOKEN)
    play(engine, ProbeBudget(), story)
    assert engine.calls == 3


def test_a_rate_limit_before_the_first_case_is_called_by_its_name() -> None:
    async def story(caller: Caller, _: Stage) -> None:
        with pytest.raises(ProbeError, match="refuses calls now: HTTP 429: slow"):
            await measure_speed(caller)

    play(Engine(_LIMITED), ProbeBudget(), story)


def test_prompts_are_part_of_the_budget() -> None:
    async def story(caller: Caller, _: Stage) -> None:
        caller.request(CallKind(100))
        assert 100 < caller.budget.tokens < 150
        caller.request(CallKind(100, long_prompt=True))
        assert caller.budget.tokens > 3_000

    play(Engine(_ONE_TOKEN), ProbeBudget(), story)


def test_an_engine_that_ends_its_answers_itself() -> None:
    """The probe reads more of them; what is left of an abandoned one follows from the shortest."""

    async def story(caller: Caller, stage: Stage) -> None:
        probe = session_of(caller, stage)
        await probe._find_own_end(20, 108)
        assert stage.own_end == 1 and probe._notes == [
            "answers end by themselves after 1 to 20 of 108 tokens: less can be told"
        ]
        stage.own_end = 40
        call = await caller.start(CallKind(stage.tokens))
        assert stage.remaining(CASES["stream-fin"], call) == 40
        call.close()

    play(Engine(_ONE_TOKEN), ProbeBudget(), story)


def test_usage_of_an_answer_that_may_have_ended_by_itself() -> None:
    assert may_have_ended(Charged(4, 56, UsageRecord(60)))
    assert not may_have_ended(Charged(4, 56, UsageRecord(8))) and not may_have_ended(Charged(4, 56, None))
