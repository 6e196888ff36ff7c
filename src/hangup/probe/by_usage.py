"""Plays a case and judges it by the usage that the API reports for the call afterwards."""

from __future__ import annotations

import asyncio
import time

from hangup.probe.caller import Caller
from hangup.probe.cases import Case, Moment
from hangup.probe.connection import ProbeConnection
from hangup.probe.stage import Scene, Stage
from hangup.probe.usage import Charged, RecordSource, UsageRecord, judge_usage, may_have_ended, parsed, source_of
from hangup.probe.verdict import UNSTEADY, Judgement, untold

_RECORDED_S = 20.0  # a record is written some seconds after the call's end
_PACE_S = 1.0
_ANSWER_S = 10.0
_BELIEVED = (0.8, 4.0)  # tokens of a record for each event with text that came


class UsageRecords:
    """The pages of one API that report the usage of single calls."""

    def __init__(self, caller: Caller, source: RecordSource) -> None:
        self._caller = caller
        self._source = source

    @property
    def where(self) -> str:
        return self._source.path.partition("?")[0].removesuffix("/ID")

    async def read(self, id: str) -> UsageRecord | None:
        try:
            status, page, _ = await self._caller.get(self._source.page(id), _ANSWER_S)
        except (OSError, TimeoutError):
            return None
        return self._source.read(parsed(page)) if status == 200 else None

    async def settled(self, id: str, timeout_s: float) -> UsageRecord | None:
        """Return the record once two looks at it agree that it is final; the last one seen when the time is over."""
        deadline = time.monotonic() + timeout_s
        before = None
        while True:
            found = await self.read(id)
            if (found is not None and found == before and found.is_final) or time.monotonic() > deadline:
                return found
            before = found
            await asyncio.sleep(_PACE_S)


async def find_records(caller: Caller, call: ProbeConnection) -> tuple[UsageRecords, float] | None:
    """Ask for the record of a call that was read to its end; return None unless there is one, and it is right.

    The second value is how many tokens the API counts for each event.
    """
    source = source_of(call.record_id)
    if source is None:
        return None
    records = UsageRecords(caller, source)
    found = await records.settled(call.record_id, _RECORDED_S)
    share = (found.tokens or 0) / max(call.events, 1) if found is not None else 0.0
    least, most = _BELIEVED
    return (records, share) if least <= share <= most else None


class UsageTrial:
    """One case, played once, on an API that reports the usage of calls afterwards."""

    def __init__(self, stage: Stage, records: UsageRecords, within_s: float) -> None:
        self._stage = stage
        self._records = records
        self._within_s = within_s

    async def play(self, case: Case, leavers: int, live: int) -> tuple[Judgement, Scene | None]:
        """Play the case; return the judgement, and the scene for the caller to clear."""
        if case.moment in (Moment.UPLOAD, Moment.QUEUE):
            return untold("no call has an id by then, under which the API could report its usage", leavers), None
        scene = await self._stage.place(case, leavers, live)
        try:
            return await self._leave_and_ask(scene), scene
        except BaseException:
            scene.close()
            raise

    async def _leave_and_ask(self, scene: Scene) -> Judgement:
        ids = [call.record_id for call in scene.leavers]
        if not all(ids):
            return untold("the client leaves before it is told the id under which the API reports its usage", len(ids))
        left = [self._stage.remaining(scene.case, call) for call in scene.leavers]
        for call in scene.leavers:
            call.leave(scene.case.departure)
        own_end_s = max(left) / self._stage.speed.rate
        await asyncio.sleep(own_end_s * 1.2 + _PACE_S)  # a record before the answer's own end may be one of half a call
        records = [await self._records.settled(id, own_end_s + _RECORDED_S) for id in ids]
        length = self._stage.own_end or self._stage.tokens
        calls = [Charged(length - tokens, tokens, record) for tokens, record in zip(left, records, strict=True)]
        if self._stage.own_end is not None and any(map(may_have_ended, calls)):
            return untold(UNSTEADY, len(ids))
        return judge_usage(calls, self._records.where, self._within_s * self._stage.speed.rate)
