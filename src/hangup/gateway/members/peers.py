"""This process among its peers: hands its ended calls to whoever judges the engines for all, or does so itself.

All messages go to the hub and come from there, as plain rows; `send` may be a socket or a store.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hangup.core import zombie_shares
from hangup.core.admission import BackendLoad, Trust
from hangup.core.members import EndedCall, PeakLog, StopFinding, TokenRow
from hangup.core.reaper import StopState, Waiting
from hangup.gateway.reaper import Answers, EngineOwner
from hangup.gateway.tokens_seen import token_row, tokens_seen
from hangup.tasks import Tasks

if TYPE_CHECKING:
    from hangup.gateway.gateway import Gateway

ANSWER_S = 1.0  # the hub waits for so long for answers to a question,
_HUB_S = 3.0  # and we for the hub
_PERMIT_S = 0.5  # a permission that came later than this may be outdated: we may have been stopped meanwhile
_START_S = 10.0  # for the hub to start a process
_PERMITS_MAX = 5  # attempts to get one that came soon enough
_ROWS_MAX = 500  # in one message

Send = Callable[[str, dict[str, Any]], object]  # the kind of a message, and its fields


class MemberPeers:
    """Implements `hangup.gateway.reaper.Peers`."""

    def __init__(
        self,
        send: Send,
        kind: str = "worker",
        permit_s: float = _PERMIT_S,
        in_doubt: Callable[[], None] = lambda: None,
    ) -> None:
        """`kind`: what a member is, in the log. `permit_s`: a permission that took longer is asked for again. `in_doubt`: this
        process leads, and got none."""
        self._to_hub = send
        self._kind, self._permit_s, self._in_doubt = kind, permit_s, in_doubt
        self._gateway: Gateway | None = None
        self.leads = False
        self.alone = False  # the others cannot be reached
        self._term = 0
        self._asked = 0
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._ended: list[EndedCall] = []  # not sent yet,
        self._found: list[StopFinding] = []  # nor these
        self._flush: asyncio.Handle | None = None
        self._peaks: dict[str, PeakLog] = {}  # by backend
        self._work = Tasks("peers")

    def start(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def close(self) -> None:
        """Send what was not sent yet."""
        self.send_now()
        await self._work.close()
        for reply in self._replies.values():
            reply.cancel()

    def hand_in_all(self) -> None:
        """Hand in all ended calls of ours that are not known to have stopped: a new hub knows none of them."""
        if self._gateway is not None:
            self._ended = self._gateway.stopping.reaper.given_calls()
            self.send_now()

    def go_alone(self) -> None:
        """Judge calls of ours without the others, as far as that is possible, until somebody leads again."""
        if self._gateway is not None and not self.alone:
            self.leads, self.alone = False, True
            self._gateway.stopping.reaper.judge_alone()

    def follow(self) -> None:
        """Judge nothing until it is known who leads."""
        if self._gateway is not None and (self.leads or self.alone):
            self.leads = self.alone = False
            self._gateway.stopping.reaper.follow()

    # `Peers`

    def hand_in(self, call: EndedCall) -> None:
        self._ended.append(call)
        self._send_soon()

    def publish(self, rows: Sequence[StopFinding]) -> None:
        if self.leads:
            self._found += rows
            self._send_soon()

    def publish_trust(self, backend: str, trust: str) -> None:
        self._send("trust", term=self._term, backend=backend, trust=trust)

    def publish_replaced(self, backend: str) -> None:
        self._send("replaced", term=self._term, backend=backend)

    async def may_take(self, backend: str, step: dict[str, Any], rows: Sequence[StopFinding]) -> bool:
        for _ in range(_PERMITS_MAX):
            asked_at, term = time.monotonic(), self._term
            noted = await self._request("step", term=term, backend=backend, step=step, rows=[row.row() for row in rows])
            if noted is None or not noted["ok"] or not self.leads or term != self._term:
                return False
            if time.monotonic() - asked_at < self._permit_s:
                return True
        self._in_doubt()
        return False

    async def ask(self, what: str, backend: str, fields: dict[str, Any]) -> Answers:
        said = await self._request("ask_all", term=self._term, what=what, backend=backend, fields=fields)
        if said is None:
            return Answers(("hub",), {})  # somebody did not answer
        return Answers(tuple(said["expected"]), said["rows"])

    def engine_owner(self, backend: str, stop_s: Callable[[], float]) -> EngineOwner:
        return _HubsEngine(self, backend, stop_s)

    async def restart_engine(self, backend: str, within_s: float) -> str:
        """Have an engine restarted that the hub runs; return what went wrong, or ""."""
        said = await self._request("restart_engine", within_s, term=self._term, backend=backend)
        return f"its owner did not restart it within {within_s:g} s" if said is None else str(said["why"])

    async def _request(self, kind: str, within_s: float = _HUB_S, /, **fields: Any) -> dict[str, Any] | None:
        """Ask the hub; return None if it does not answer."""
        self._asked += 1
        number = self._asked
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            self._send(kind, number=number, **fields)
            async with asyncio.timeout(within_s):
                return await reply
        except TimeoutError:
            return None
        finally:
            del self._replies[number]

    # Messages to the hub, in the order in which things happened

    def _send(self, kind: str, **fields: Any) -> None:
        self.send_now()
        self._to_hub(kind, fields)

    def _send_soon(self) -> None:
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_soon(self.send_now)

    def send_now(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        ended, self._ended = self._ended, []
        for at in range(0, len(ended), _ROWS_MAX):
            self._to_hub("ended", {"calls": [call.row() for call in ended[at : at + _ROWS_MAX]]})
        found, self._found = self._found, []
        for at in range(0, len(found), _ROWS_MAX):
            self._to_hub("found", {"term": self._term, "rows": [row.row() for row in found[at : at + _ROWS_MAX]]})

    # Messages from the hub

    def handle(self, kind: str, message: dict[str, Any]) -> bool:
        """Handle a message of the hub; return False if it is about something else."""
        handler = self._HANDLERS.get(kind)
        if handler is None or self._gateway is None:
            return False
        handler(self, self._gateway, message)
        return True

    def _leader(self, gateway: Gateway, message: dict[str, Any]) -> None:
        self.follow()
        self.leads, self._term = message["leads"], message["term"]
        if self.leads:
            what = {"pid": os.getpid(), "term": self._term, "pending_stops": len(message["calls"])}
            if self._kind == "worker":
                gateway.log.event("worker_leads", **what)
            else:
                gateway.log.event("gateway_leads", **what)
            self._give_up(gateway.stopping.reaper.lead([EndedCall(*row) for row in message["calls"]], message["steps"]))
            for name, backend in gateway.backends.by_name.items():  # a new hub knows nothing of it
                self.publish_trust(name, backend.load.health.trust.value)
            for name in message["steps"]:
                if not gateway.stopping.reaper.backends_named(name):  # removed before this process led
                    self.publish_replaced(name)

    def _take_ended(self, gateway: Gateway, message: dict[str, Any]) -> None:
        if self.leads:
            self._give_up(gateway.stopping.reaper.take_calls(EndedCall(*row) for row in message["calls"]))

    def _give_up(self, unknown: list[EndedCall]) -> None:
        """Nobody can verify calls of a backend that a reload has removed."""
        self.publish([StopFinding(call, StopState.UNVERIFIED.value) for call in unknown])

    def _take_found(self, gateway: Gateway, message: dict[str, Any]) -> None:
        store = gateway.accounting.store
        for found in map(finding_of, message["rows"]):
            stop = gateway.stopping.reaper.found(found)
            if stop is not None and found.state == StopState.ZOMBIE and any(stop.account.saved) and store is not None:
                store.add(zombie_shares.not_saved(found.call.backend, stop))

    def _take_trust(self, gateway: Gateway, message: dict[str, Any]) -> None:
        if not self.leads:
            for backend, trust in message["trust"].items():
                gateway.stopping.reaper.take_trust(backend, Trust(trust))

    def _member_died(self, gateway: Gateway, message: dict[str, Any]) -> None:
        gateway.stopping.reaper.doubt()

    def _replied(self, gateway: Gateway, message: dict[str, Any]) -> None:
        reply = self._replies.get(message["number"])
        if reply is not None and not reply.done():
            reply.set_result(message)

    # Questions of the leader

    def _question(self, gateway: Gateway, message: dict[str, Any]) -> None:
        what, name, fields = message["what"], message["backend"], message["fields"]
        if what == "abandon":
            self._work.start(self._abandon(gateway, message["number"], name, fields["why"]))
            return
        row = self._ANSWERS[what](self, gateway, name, {**fields, "term": message["term"]})
        self._send("answer_leader", number=message["number"], row=row)

    def _count(self, gateway: Gateway, name: str, fields: dict[str, Any]) -> tuple[int, ...]:
        loads = [backend.load for backend in gateway.stopping.reaper.backends_named(name)]
        if name not in self._peaks:  # backends come and go: keep no logs of those that have gone
            self._peaks = {known: log for known, log in self._peaks.items() if gateway.stopping.reaper.backends_named(known)}
        log = self._peaks.setdefault(name, PeakLog())
        peak = log.peak_since(fields["term"], fields["number"], fields["since"], sum(load.take_peak() for load in loads))
        calls = sum(load.in_flight - load.held for load in loads)
        live, placed, unstarted = (sum(counts) for counts in zip(*_counts(loads), strict=True)) if loads else (0, 0, 0)
        return live, peak, placed, unstarted, calls

    def _waiting(self, gateway: Gateway, name: str, fields: dict[str, Any]) -> tuple[float | None, float, float | None]:
        now, waits, last_output_at = time.monotonic(), list[Waiting](), -math.inf
        for backend in gateway.stopping.reaper.backends_named(name):
            found, output_at = gateway.stopping.waiting(backend)
            waits += found
            last_output_at = max(last_output_at, output_at)
        waited_s = now - min(wait.since for wait in waits) if waits else None
        return waited_s, max((wait.reading_s for wait in waits), default=0.0), _age(last_output_at, now)

    def _calls(self, gateway: Gateway, name: str, fields: dict[str, Any]) -> tuple[int, float]:
        now, times = time.monotonic(), [b.load.time for b in gateway.stopping.reaper.backends_named(name)]
        for time_of in times:
            time_of.pass_until(now)
        return sum(time_of.count for time_of in times), sum(time_of.call_s for time_of in times)

    def _tokens(self, gateway: Gateway, name: str, fields: dict[str, Any]) -> tuple[object, ...]:
        backend = gateway.backends.by_name.get(name)
        if backend is None:
            return TokenRow().row()
        return token_row(backend, tokens_seen(gateway.accounting, gateway.registry), time.monotonic()).row()

    def _restarted(self, gateway: Gateway, name: str, fields: dict[str, Any]) -> bool:
        for backend in gateway.stopping.reaper.backends_named(name):
            backend.facts_known = False
        return True

    def _keys(self, gateway: Gateway, name: str, fields: dict[str, Any]) -> list[str]:
        stopping = gateway.stopping
        return [key for backend in stopping.reaper.backends_named(name) for key in stopping.keys(backend)]

    async def _abandon(self, gateway: Gateway, number: int, name: str, why: str) -> None:
        count = 0
        for backend in gateway.stopping.reaper.backends_named(name):
            count += await gateway.stopping.abandon(backend, why)
        self._send("answer_leader", number=number, row=count)

    _ANSWERS: Mapping[str, Callable[[MemberPeers, Gateway, str, dict[str, Any]], Any]] = {
        "count": _count,
        "waiting": _waiting,
        "calls": _calls,
        "tokens": _tokens,
        "restarted": _restarted,
        "keys": _keys,
    }
    _HANDLERS: Mapping[str, Callable[[MemberPeers, Gateway, dict[str, Any]], None]] = {
        "leader": _leader,
        "ended": _take_ended,
        "found": _take_found,
        "trust": _take_trust,
        "member_died": _member_died,
        "step_noted": _replied,
        "answers": _replied,
        "engine_restarted": _replied,
        "question": _question,
    }


class _HubsEngine:
    """An engine that the hub runs."""

    def __init__(self, peers: MemberPeers, backend: str, stop_s: Callable[[], float]) -> None:
        self._peers, self._backend, self._stop_s = peers, backend, stop_s

    async def restart(self) -> str:
        return await self._peers.restart_engine(self._backend, self._stop_s() + _START_S)

    async def close(self, within_s: float = math.inf) -> None:
        """It runs on for the others."""


def finding_of(row: Sequence[Any]) -> StopFinding:
    call, state, tokens_now = row
    return StopFinding(EndedCall(*call), state, tokens_now)


def _counts(loads: Sequence[BackendLoad]) -> list[tuple[int, int, int]]:
    return [(load.choices, load.placed, load.unstarted) for load in loads]


def _age(at: float, now: float) -> float | None:
    return now - at if at > -math.inf else None
