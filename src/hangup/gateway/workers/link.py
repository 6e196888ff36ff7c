"""The worker's end of the channel: reports what this worker holds, and does what the supervisor asks for.

If the supervisor dies, its socket closes: the worker drains and exits, because nobody could see it, reload it or stop it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from starlette.types import ASGIApp

from hangup.config.load import Configuration
from hangup.core.admission import BackendLoad
from hangup.core.members import Allotments, Grant
from hangup.core.reaper import PendingStop
from hangup.gateway.gateway import Gateway
from hangup.gateway.workers.asgi import ask_app
from hangup.gateway.workers.channel import Channel, Message, unpacked
from hangup.gateway.workers.quotas import SharedQuotas
from hangup.tasks import TASKS, Tasks

REPORT_S = 0.1  # between two reports while nobody waits for a place,
_HURRY_S = 0.02  # while somebody may,
_SOON_S = 0.002  # and after a call had to wait for what may be unused elsewhere: several may, so they are reported together,
_SOON_AGAIN_S = 0.01  # at most this often
_LEFT = "worker_died"  # the cause of a call whose worker died


class LinkedServer(Protocol):
    """The worker, as far as the supervisor's messages concern it."""

    gateway: Gateway

    def listen_on(self, numbers: frozenset[int]) -> None:
        """Accept clients from these of the data port's sockets, and from no other."""

    def reload(self) -> None: ...

    def drain(self) -> None:
        """Serve no new calls, and end after the running ones."""

    def cut_drain_short(self) -> None: ...


class SupervisorLink:
    def __init__(self, channel: Channel, configuration: Configuration) -> None:
        self.channel = channel
        self.configuration = configuration  # the latest that the supervisor sent
        self.admin_app: ASGIApp | None = None
        self._allotments = Allotments()
        self._sent_calls: dict[str, tuple[str, str]] = {}  # the calls in engines that the supervisor knows: backend and key
        self._answers = Tasks("admin answer")
        self._soon: asyncio.TimerHandle | None = None
        self._soon_from = 0.0  # not before this time
        self._has_slots = False  # any backend has slots, which are allotted
        self._server: LinkedServer | None = None

    def start(self, server: LinkedServer) -> None:
        """Begin to report, and to do what the supervisor asks for. Ready: this worker can serve calls."""
        self._server = server
        placement = server.gateway.placement
        placement.on_wait = self._call_waits
        self._quotas = SharedQuotas(placement, self._allotments, self._report_soon)
        self._tasks = [TASKS.keep("supervisor", self._listen), TASKS.keep("report", self._report_for_ever)]

    def ready(self) -> None:
        self._report()
        self.channel.send("ready")

    async def close(self) -> None:
        if self._server is not None:
            self._server.gateway.placement.on_wait = None
            self._quotas.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._soon is not None:
            self._soon.cancel()
        await self._answers.close()
        await self.channel.flush()

    # Reports

    async def _report_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_HURRY_S if self._in_hurry() else REPORT_S)
            self._report()

    def _loads(self) -> Iterable[BackendLoad]:
        assert self._server is not None
        return self._server.gateway.placement.admission.fleet.loads

    def _in_hurry(self) -> bool:
        """Return whether a place may be needed here or elsewhere."""
        assert self._server is not None
        if not self._has_slots:
            return False
        if self._server.gateway.placement.admission.queue.count:
            return True
        return any(load.slots and load.in_flight > load.allotted for load in self._loads())

    def _call_waits(self) -> None:
        if self._has_slots:
            self._report_soon()

    def _report_soon(self) -> None:
        """Report places soon; calls are reported at the usual interval."""
        if self._soon is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + _SOON_S, self._soon_from)
            self._soon_from = at + _SOON_AGAIN_S
            self._soon = loop.call_at(at, self._report_places)

    def _report(self) -> None:
        """Report everything."""
        assert self._server is not None
        gateway = self._server.gateway
        output = {name: b.last_output_at for name, b in gateway.backends.by_name.items() if b.last_output_at > -math.inf}
        new, gone = self._changed_calls(gateway, output)
        self.channel.send("calls", new=new, gone=gone, live=len(gateway.registry.live), output=output)
        self._report_places()

    def _report_places(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        assert self._server is not None
        gateway = self._server.gateway
        waiting = gateway.placement.admission.queue.count
        rows = []
        for load in self._loads():
            if load.slots:
                demand = load.in_flight + (waiting if load.health.takes_calls else 0)
                rows.append(self._allotments.report(load.name, load.slots, load.in_flight, demand))
        self._has_slots = bool(rows)
        rows += self._quotas.reports()
        self._allotments.keep_only(row.resource for row in rows)
        places = [(row.resource, row.capacity, row.held, row.demand, row.number) for row in rows]
        self.channel.send("places", places=places, asks=self._quotas.asked_for())

    def _changed_calls(self, gateway: Gateway, output: dict[str, float]) -> tuple[list[tuple[object, ...]], list[str]]:
        """Return the calls that are in engines and were not at the last report, and the ids of those that are there no more.
        Note in `output` when each backend last sent anything."""
        before, now = self._sent_calls, dict[str, tuple[str, str]]()
        new: list[tuple[object, ...]] = []
        for id, flow in gateway.registry.live.items():
            key = flow.engine_key
            if key and flow.backend is not None:
                call, name = flow.call, flow.backend.name
                if call.first_token_at is not None and call.progress_at > output.get(name, -math.inf):
                    output[name] = call.progress_at
                entry = now[id] = (name, key)
                if before.get(id) != entry:
                    choices = flow.ticket.choices if flow.ticket is not None else 1
                    new.append((id, *entry, call.tenant, call.model, call.tokens_out, choices))
        self._sent_calls = now
        return new, [id for id in before if id not in now]

    # What the supervisor asks for

    async def _listen(self) -> None:
        while (message := await self.channel.receive()) is not None:
            self._handle(message)
        assert self._server is not None
        self._server.gateway.log.event("supervisor_gone")
        self._server.drain()

    def _handle(self, message: Message) -> None:
        assert self._server is not None
        kind = message["kind"]
        if kind == "grants":
            self._take_grants(message["grants"])
        elif kind == "ask":
            self._answers.start(self._answer(message["number"], message["method"], message["target"]))
        elif kind == "listen":
            self._server.listen_on(frozenset(message["sockets"]))
        elif kind == "stop_calls":
            self._stop_calls(message)
        elif kind == "configuration":
            self.configuration = unpacked(message["packed"])
            self._server.reload()
        elif kind == "considered":
            self._quotas.considered(message["more_may_come"])
        elif kind == "output":
            self._note_output(message["at"])
        elif kind == "drain":
            self._server.drain()
        elif kind == "cut_drain_short":
            self._server.cut_drain_short()

    def _note_output(self, at: dict[str, float]) -> None:
        """Note when backends last sent anything to any worker: one that serves only others is not stuck."""
        assert self._server is not None
        for name, moment in at.items():
            backend = self._server.gateway.backends.by_name.get(name)
            if backend is not None:
                backend.last_output_at = max(backend.last_output_at, moment)

    def _take_grants(self, grants: list[tuple[str, int, int]]) -> None:
        assert self._server is not None
        loads = {load.name: load for load in self._loads()}
        for name, allowed, number in grants:
            load = loads.get(name)
            if not self._allotments.take(Grant("", name, allowed, number)):
                continue
            if load is not None:
                self._server.gateway.placement.allot(load, allowed)
            else:
                self._quotas.granted(name, allowed)
        self._report_places()  # others may wait for what is returned

    async def _answer(self, number: int, method: str, target: str) -> None:
        assert self.admin_app is not None
        try:
            status, body = await ask_app(self.admin_app, method, target)
        except Exception:  # the application has logged it; the supervisor must not wait for an answer
            status, body = 500, b'{"error":"internal gateway error; see the gateway log"}'
        self.channel.send("answer", number=number, status=status, body=body.decode("utf-8", "replace"))

    def _stop_calls(self, message: Message) -> None:
        """Stop the calls that a dead worker left in the engines, and watch them as if they had been ours."""
        assert self._server is not None
        gateway = self._server.gateway
        stop_call = _stopper(gateway)
        for worker, rows in message["calls"].items():
            for row in rows:
                gateway.log.guard(row[0], stop_call, worker, *row)
        self.channel.send("stopping", term=message["term"], workers=list(message["calls"]))


def _stopper(gateway: Gateway) -> Callable[..., None]:
    def stop_call(worker: str, id: str, backend: str, key: str, tenant: str, model: str, tokens: int, choices: int) -> None:
        found = gateway.backends.by_name.get(backend)
        if found is None:
            return
        stop = PendingStop(
            id, time.monotonic(), key=key, tokens=tokens, choices=choices, tenant=tenant, model=model, cause=_LEFT
        )
        stop.abort_sent = gateway.stopping.aborts.send(found, key)
        gateway.stopping.reaper.add(found, stop, first_token=True)
        gateway.log.event("left_call_stopped", id=id, tenant=tenant, backend=backend, worker=worker, abort_sent=stop.abort_sent)

    return stop_call
