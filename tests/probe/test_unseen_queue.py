"""A client that leaves the queue of an engine that shows its slots only, and is slower while they are all full."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from hangup.probe.budget import ProbeBudget
from hangup.probe.by_figures import FiguresTrial
from hangup.probe.caller import Caller
from hangup.probe.cases import CASES
from hangup.probe.figures import FigureSource, read_slots
from hangup.probe.meet import Speed
from hangup.probe.stage import Stage
from hangup.probe.verdict import Ruling
from hangup.probe.watch import EngineWatch
from probe.test_stage import _TOKEN, Engine, play

SLOTS, ALONE, CROWDED = 2, 200.0, 60.0  # tokens a second of each stream


class SlotsEngine(Engine):
    """Says nothing of calls that wait. One whose client has left is computed to its end, or dropped when its turn comes."""

    def __init__(self, *, deaf: bool) -> None:
        super().__init__()
        self._deaf = deaf
        self._free = asyncio.Semaphore(SLOTS)
        self._running = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                rows = [{"id": slot, "is_processing": slot < self._running} for slot in range(SLOTS)]
                page = json.dumps(rows).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page))
            else:
                length = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
                asked = json.loads(await reader.readexactly(length))["max_tokens"]
                async with self._free:
                    if self._deaf or not reader.at_eof():
                        await self._answer(asked, reader, writer)
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, asked: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._running += 1
        try:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            for _ in range(asked):
                if not reader.at_eof():
                    writer.write(_TOKEN)
                await asyncio.sleep(1 / (ALONE if self._running == 1 else CROWDED))
        finally:
            self._running -= 1


@pytest.mark.parametrize(("deaf", "wrong"), [(True, Ruling.STOPPED), (False, Ruling.NEVER)], ids=["deaf", "drops"])
def test_a_call_that_waits_unseen_is_watched_until_its_turn_has_come(deaf: bool, wrong: Ruling) -> None:
    """Those in front take three times as long as was reckoned. A machine that is too busy may leave it untold."""

    async def story(caller: Caller, stage: Stage) -> None:
        stage.speed, stage.rest_s = Speed(0.01, ALONE), 0.8
        watch = EngineWatch(caller, FigureSource("/slots", read_slots), SLOTS)
        judgement, scene = await FiguresTrial(stage, watch, 1.0).play(CASES["queue-fin"], 1, SLOTS)
        assert scene is not None
        scene.close()
        assert judgement.ruling in {Ruling.STOPPED, Ruling.NEVER, Ruling.UNTOLD} - {wrong}, judgement
        assert deaf or judgement.stopped_s is None or judgement.stopped_s > 1.5, "it was gone when those in front were done"

    play(SlotsEngine(deaf=deaf), ProbeBudget(), story)
