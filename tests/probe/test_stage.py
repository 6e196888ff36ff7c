"""Calls of the probe that get no slot are closed at once, on real sockets, so that nobody computes an answer for them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hangup.core.reaper import EngineStatus
from hangup.probe.budget import BudgetSpent, ProbeBudget
from hangup.probe.by_echo import EchoTrials, _OwnLag
from hangup.probe.by_figures import FiguresTrial
from hangup.probe.caller import Caller, CallKind, resolve
from hangup.probe.cases import CASES
from hangup.probe.dialects import DIALECTS
from hangup.probe.echo import QuietTimes
from hangup.probe.endpoint import parse
from hangup.probe.figures import SOURCES
from hangup.probe.meet import Speed, long_first_token_time
from hangup.probe.session import ProbeOptions, ProbeSession
from hangup.probe.stage import Scene, Stage, Unplayable
from hangup.probe.verdict import Ruling
from hangup.probe.watch import StatusLook
from support.waiting import soon

_TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + _TOKEN
_ONE_TOKEN = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(_TOKEN), _TOKEN)
_BUSY = b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy"
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Engine:
    """Gives each call the next answer, or the last one again, and keeps its connection open until the client closes it."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.calls = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._answers[min(self.calls, len(self._answers) - 1)])
            self.calls += 1
            while await reader.read(1 << 16):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


def play(engine: Engine, budget: ProbeBudget, story: Callable[[Caller, Stage], Awaitable[None]]) -> None:
    """Run a scenario; its calls must be closed while the probe continues. The engine counts as slow, so no wait is short."""

    async def main() -> None:
        server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
        endpoint = parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        caller = Caller(endpoint, await resolve(endpoint), "", budget)
        caller.dialect = DIALECTS["openai"]
        try:
            await story(caller, Stage(caller, Speed(30.0, 100.0), long_first_token_s=300.0, rest_s=1.0))
            await soon(lambda: engine.open == 0, "the probe to close its calls")
        finally:
            caller.close()
            server.close()

    asyncio.run(main())


def test_live_streams_are_closed_when_one_of_them_is_refused() -> None:
    async def story(_: Caller, stage: Stage) -> None:
        with pytest.raises(Unplayable, match="HTTP 503: busy"):
            await stage.hold(3)

    engine = Engine(_STREAM, _STREAM, _BUSY)
    play(engine, ProbeBudget(), story)
    assert engine.calls == 3


def test_live_streams_are_closed_when_the_budget_ends() -> None:
    async def story(_: Caller, stage: Stage) -> None:
        with pytest.raises(BudgetSpent):
            await stage.place(CASES["stream-fin-beside"], 1, 3)

    play(Engine(_STREAM), ProbeBudget(calls_max=2), story)


@pytest.mark.parametrize(
    ("case", "answer", "said"),
    [
        ("prefill-fin", _STREAM, "--max-calls"),
        ("queue-fin", _STREAM, "did not wait"),
        ("whole-fin", _WHOLE, "before the client could leave"),
        ("whole-fin", _BUSY, "HTTP 503"),
        ("keep-alive-fin", _ONE_TOKEN, "--max-calls"),
    ],
    ids=["prefill", "queue", "whole", "refused", "keep-alive"],
)
def test_a_client_that_does_not_get_its_place_leaves(case: str, answer: bytes, said: str) -> None:
    async def story(_: Caller, stage: Stage) -> None:
        with pytest.raises((Unplayable, BudgetSpent), match=said):
            await stage.place(CASES[case], 1, 0)

    play(Engine(answer), ProbeBudget(calls_max=1), story)


def test_a_connection_that_is_closed_after_each_answer_gets_no_second_call() -> None:
    class Closing(Engine):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(_ONE_TOKEN)
            writer.close()

    async def story(_: Caller, stage: Stage) -> None:
        with pytest.raises(Unplayable, match="closes the connection after"):
            await stage.place(CASES["keep-alive-fin"], 1, 0)

    play(Closing(), ProbeBudget(), story)


def test_a_client_leaves_sooner_if_the_engine_reads_faster_than_it_did() -> None:
    """Reckoned with 300 s for the prompt: the first call has its token at once, the second is left in time."""

    async def story(_: Caller, stage: Stage) -> None:
        scene = await stage.place(CASES["prefill-fin"], 1, 0)
        assert not scene.leavers[0].events
        scene.close()

    play(Engine(_STREAM, b"HTTP/1.1 200 OK\r\n"), ProbeBudget(), story)


def test_a_prompt_that_does_not_fit_is_followed_by_a_shorter_one() -> None:
    too_long = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 8\r\n\r\ntoo long"
    lengths = []

    async def story(caller: Caller, stage: Stage) -> None:
        request = caller.request

        def noted(kind: CallKind) -> tuple[bytes, bytes]:
            head, body = request(kind)
            lengths.append(len(body))
            return head, body

        caller.request = noted  # type: ignore[method-assign]
        assert await long_first_token_time(caller) is not None
        assert lengths[0] > lengths[1] > lengths[2]
        with pytest.raises(Unplayable, match="HTTP 400: too long"):
            await stage.place(CASES["prefill-fin"], 1, 0)
        assert len(lengths) == 4, "the shortest was refused, too"

    play(Engine(too_long, too_long, _ONE_TOKEN, too_long), ProbeBudget(), story)


def test_a_search_for_slots_that_is_cut_short_leaves_nothing() -> None:
    async def until_idle(timeout_s: float) -> int:
        return 0

    async def story(caller: Caller, stage: Stage) -> None:
        options = ProbeOptions(caller.endpoint.url, clients=8, budget=caller.budget)
        session = ProbeSession(options, caller, caller, "", lambda *_: None)
        session._stage, session._watch = stage, cast(Any, SimpleNamespace(until_idle=until_idle, source=SOURCES[0]))
        assert await session._find_slots() == 0

    play(Engine(_STREAM), ProbeBudget(calls_max=5), story)


def test_an_undisturbed_call_that_fails_is_made_up_for() -> None:
    """An echo needs all of them; one answer without text must not cost every verdict."""
    none = b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\ndata: [DONE]\n\n"

    async def story(caller: Caller, stage: Stage) -> None:
        session = ProbeSession(ProbeOptions(caller.endpoint.url), caller, caller, "", lambda *_: None)
        assert len((await session._undisturbed(4)).times) == 4
        assert session._notes == ["1 of 5 undisturbed calls failed: the answer has no text"]

    play(Engine(_ONE_TOKEN, none, _ONE_TOKEN), ProbeBudget(), story)


def test_no_canary_runs_on_when_another_one_cannot_be_sent() -> None:
    engine = Engine(_ONE_TOKEN)

    async def story(caller: Caller, stage: Stage) -> None:
        with pytest.raises(BudgetSpent):
            await EchoTrials(caller, stage, 3, QuietTimes((0.01,)), 1.0)._all_free()
        assert engine.calls == 1, "the one that was sent has been answered"

    play(engine, ProbeBudget(calls_max=1), story)


class OneSlot(Engine):
    """A deaf engine with one slot: computes each answer to its end, however soon its client leaves."""

    def __init__(self, tokens_a_second: float, whole: float) -> None:
        super().__init__()
        self._slot = asyncio.Lock()
        self._rate, self._whole = tokens_a_second, whole

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
            body = json.loads(await reader.readexactly(length))
            asked = body["max_tokens"]
            async with self._slot:
                if not body["stream"]:
                    await asyncio.sleep(asked / self._whole)
                    writer.write(_WHOLE)
                    return
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                for _ in range(max(asked // 10, 1)):
                    if not writer.is_closing():
                        writer.write(_TOKEN * 10)
                    await asyncio.sleep(10 / self._rate)
        finally:
            self.open -= 1
            writer.close()


@pytest.mark.parametrize(("case", "rate"), [("stream-fin", 2000.0), ("whole-fin", 100.0)])
def test_an_engine_with_one_slot_that_became_faster_is_not_taken_for_one_that_stops(case: str, rate: float) -> None:
    """It was reckoned with 100 tokens a second: abandoned answers now end by themselves at once."""

    async def story(caller: Caller, stage: Stage) -> None:
        stage.speed = Speed(0.01, 100.0)
        quiet = QuietTimes((0.01,) * 18)
        judgement = await EchoTrials(caller, stage, 1, quiet, 1.0).play(CASES[case])
        assert judgement.ruling is Ruling.NEVER, judgement

    play(OneSlot(rate, whole=400.0), ProbeBudget(), story)


def test_how_far_an_answer_is_that_does_not_stream() -> None:
    """By the clock both have just begun; the engine, faster than it was, has counted 30 of their tokens."""

    async def story(caller: Caller, stage: Stage) -> None:
        calls = [await caller.start(CallKind(stage.tokens, stream=False)) for _ in range(2)]
        trial = FiguresTrial(stage, cast(Any, None), 1.0)
        looks = [StatusLook(0.0, 0.0, EngineStatus(2, tokens=tokens), tokens) for tokens in (1000, 1030)]
        whole, streaming = (Scene(CASES[name], calls, []) for name in ("whole-fin-slots", "stream-fin-slots"))
        computed = trial._computed_so_far(whole, looks[0], looks[1])
        assert computed == 30 and trial._left(whole, computed) == [stage.tokens - 15] * 2
        assert trial._left(whole, 0) == [stage.tokens] * 2
        assert trial._left(streaming, computed) == [stage.tokens] * 2, "what came of a stream is known"
        whole.close()

    play(Engine(_STREAM), ProbeBudget(), story)


def test_an_abandoned_prompt_is_read_before_its_answer_ends_by_itself() -> None:
    """An engine that stops after the prompt has computed nothing: the answer's own end is later."""

    async def story(caller: Caller, stage: Stage) -> None:
        call = await caller.start(CallKind(stage.tokens))
        trial = FiguresTrial(stage, cast(Any, None), 1.0)
        prefill, streaming = (Scene(CASES[name], [call], []) for name in ("prefill-fin", "stream-fin"))
        assert trial._remaining_s(streaming, 100) == 1.0
        assert 200 < trial._remaining_s(prefill, 100) <= 301, "the stage reckons with 300 s for a long prompt"
        call.close()

    play(Engine(_STREAM), ProbeBudget(), story)


def test_patience_begins_anew_with_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no stall."""
    more_came, waited = iter((True, True, False)), list[float]()

    async def until(condition: object, timeout_s: float) -> bool:
        waited.append(timeout_s)
        return next(more_came)

    async def story(_: Caller, stage: Stage) -> None:
        (call,) = await stage.hold(1)
        monkeypatch.setattr(call, "until", until)
        assert not await call.read_whole(7.0) and waited == [7.0] * 3
        call.close()

    play(Engine(_STREAM), ProbeBudget(), story)


def test_a_probe_that_is_held_up_notices_it() -> None:
    async def main() -> None:
        lag = _OwnLag()
        time.sleep(0.3)  # noqa: ASYNC251 - nothing else runs meanwhile, as on a machine without a free CPU
        lag.close()
        assert lag.worst_s >= 0.2

    asyncio.run(main())
