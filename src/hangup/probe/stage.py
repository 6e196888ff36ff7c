"""Puts clients where a case wants them: at one moment of a call, alone or beside others, ready to leave."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from hangup.probe.caller import Caller, CallKind
from hangup.probe.cases import Case, Company, Departure, Moment
from hangup.probe.connection import CAN_VANISH, ProbeConnection
from hangup.probe.meet import ANSWER_S, Speed

_EVENTS_BEFORE_LEAVING = 4
_QUEUED_S = 0.5  # a call without a first token for that long, though every slot was free before, waits for a slot
_PREFILL_SHARE = 0.4  # of the first-token time of a long prompt
_TOO_SOON_MAX = 2  # so often a client is placed again before the first token, sooner each time
_UPLOAD_PAUSE_S = 0.1
_PATIENCE_S = 30.0
_TOKENS = (32, 4096)
_WARM_UP = CallKind(2)


class Unplayable(Exception):
    """A case cannot be played here; the text says why."""


@dataclass(slots=True)
class Scene:
    """Clients on their places: those who will leave, and those who stay."""

    case: Case
    leavers: list[ProbeConnection]
    live: list[ProbeConnection]

    @property
    def live_now(self) -> int:
        return sum(not connection.ended for connection in self.live)

    def close(self) -> None:
        for connection in (*self.leavers, *self.live):
            connection.close()


class Stage:
    """Places clients. The speed may be corrected as long as no client has its place."""

    def __init__(self, caller: Caller, speed: Speed, long_first_token_s: float, rest_s: float) -> None:
        self._caller = caller
        self.rest_s = rest_s  # how long an abandoned answer shall go on
        self.speed = speed
        self._long_first_token_s = long_first_token_s
        self.own_end: int | None = None  # tokens after which answers end though they may be longer; None: they do not

    @property
    def tokens(self) -> int:
        """The length of the answers that clients ask for."""
        least, most = _TOKENS
        return min(max(math.ceil(self.speed.rate * self.rest_s) + 8, least), most)

    @property
    def answer_s(self) -> float:
        """How long an undisturbed answer takes after its first token."""
        return self.tokens / self.speed.rate

    @property
    def patience_s(self) -> float:
        """How long to wait for a first token, now that the speed is known."""
        return min(max(self.speed.first_token_s * 20, self.answer_s * 3, _PATIENCE_S), ANSWER_S)

    async def hold(self, count: int, tokens: int = 0) -> list[ProbeConnection]:
        """Start live streams and wait for their first tokens; raise `Unplayable` if one gets none."""
        kind, calls = CallKind(tokens or self.tokens), list[ProbeConnection]()
        with ExitStack() as opened:
            for _ in range(count):
                calls.append(opened.enter_context(_closed_on_failure(await self._caller.start(kind))))
            for call in calls:
                if not await call.until(lambda c: c.events, self.patience_s):
                    raise Unplayable(f"another client's call was not answered: {call.refused or 'no first token'}")
        return calls

    async def place(self, case: Case, leavers: int, live: int) -> Scene:
        """Place the clients of a case."""
        if case.departure is Departure.SILENCE and not CAN_VANISH:
            raise Unplayable("only Linux lets a probe drop the packets of its own socket")
        scene = Scene(case, [], await self.hold(live))
        try:
            places = (self._place_one(case) for _ in range(leavers))
            placed = await asyncio.gather(*places, return_exceptions=True)
            scene.leavers = [one for one in placed if isinstance(one, ProbeConnection)]
            errors = [one for one in placed if isinstance(one, BaseException)]
            if errors and (case.company is not Company.STORM or not scene.leavers):
                raise errors[0]
        except BaseException:
            scene.close()
            raise
        return scene

    def remaining(self, case: Case, call: ProbeConnection) -> int:
        """Return how many tokens a call still has to come."""
        if case.moment is Moment.WHOLE:
            computed = (time.monotonic() - call.sent_at - self.speed.first_token_s) * self.speed.rate
        else:
            computed = call.tokens(self.speed.tokens_per_event)
        length = self.tokens if self.own_end is None else min(self.own_end, self.tokens)
        return max(round(length - max(computed, 0.0)), 0)

    def reading_s(self, case: Case, call: ProbeConnection) -> float:
        """Return for how long the engine would still read the prompt of a call."""
        if case.moment is not Moment.PREFILL:
            return 0.0
        return max(self._long_first_token_s - (time.monotonic() - call.sent_at), 0.0)

    async def _place_one(self, case: Case) -> ProbeConnection:
        kind = CallKind(self.tokens, case.streams, long_prompt=case.moment is Moment.PREFILL)
        small_buffer = case.departure is Departure.STALL
        if case.moment is Moment.UPLOAD:
            return await self._in_upload(kind)
        if case.moment is Moment.KEEP_ALIVE:
            return await self._second_call(kind)
        if case.moment is Moment.PREFILL:
            return await self._before_first_token(kind)
        with _closed_on_failure(await self._caller.start(kind, small_buffer=small_buffer)) as call:
            match case.moment:
                case Moment.QUEUE:
                    await self._waiting(call)
                case Moment.WHOLE:
                    await self._computing(call)
                case _:
                    await self._streaming(call, must=case.company is not Company.STORM)
            if case.moment is Moment.PIPELINED:
                call.send_more(self._caller.page_request("/v1/models"))
                await asyncio.sleep(_UPLOAD_PAUSE_S)
        return call

    async def _in_upload(self, kind: CallKind) -> ProbeConnection:
        head, body = self._caller.request(kind)
        with _closed_on_failure(await self._caller.connect()) as call:
            call.send(head, body[: len(body) // 2], stream=kind.stream)
            await asyncio.sleep(_UPLOAD_PAUSE_S)
            _check(call)
        return call

    async def _second_call(self, kind: CallKind) -> ProbeConnection:
        with _closed_on_failure(await self._caller.start(_WARM_UP)) as call:
            await call.until_end(self.patience_s)
            _check(call)
            if not call.keeps_alive:
                raise Unplayable("the endpoint closes the connection after each answer")
            call.send(*self._caller.request(kind), stream=kind.stream)
            if not await call.until(lambda c: c.status, self.patience_s) and call.lost:
                raise Unplayable("the endpoint closes the connection after an answer, and does not say so")
            await self._streaming(call)
        return call

    async def _streaming(self, call: ProbeConnection, *, must: bool = True) -> None:
        patience_s = self.patience_s if must else self.speed.first_token_s * 3 + 1.0
        there = await call.until(lambda c: c.events >= _EVENTS_BEFORE_LEAVING, patience_s)
        _check(call)
        if call.ended or (must and not there):
            raise Unplayable("the answer ended before the client could leave" if call.ended else "there was no first token")

    async def _before_first_token(self, kind: CallKind) -> ProbeConnection:
        too_soon = 0
        while True:
            with _closed_on_failure(await self._caller.start(kind)) as call:
                if await call.until(lambda c: c.events or c.refused, self._long_first_token_s * _PREFILL_SHARE) and call.events:
                    too_soon += 1
                    if too_soon > _TOO_SOON_MAX:
                        raise Unplayable("the first token came too soon to leave before it")
                    self._long_first_token_s = (call.first_token_at or call.sent_at) - call.sent_at  # faster than it was
                    call.close()
                    continue
                if call.may_be_too_long and self._caller.shorten_long_prompts():
                    call.close()
                    continue
                _check(call)
            return call

    async def _waiting(self, call: ProbeConnection) -> None:
        if await call.until(lambda c: c.events, _QUEUED_S + self.speed.first_token_s * 2):
            raise Unplayable("the call did not wait: the engine took it beside all others")
        _check(call)

    async def _computing(self, call: ProbeConnection) -> None:
        computing_s = self.speed.first_token_s + _EVENTS_BEFORE_LEAVING * 2 / self.speed.rate
        await call.until(lambda c: c.ended, computing_s)
        _check(call)
        if call.ended:
            raise Unplayable("the answer was there before the client could leave")


@contextmanager
def _closed_on_failure(call: ProbeConnection) -> Iterator[ProbeConnection]:
    """Close a call that does not get its place: no engine shall compute an answer that nobody will read."""
    try:
        yield call
    except BaseException:
        call.close()
        raise


def _check(call: ProbeConnection) -> None:
    if call.refused:
        raise Unplayable(f"the call was refused: {call.refused}")
