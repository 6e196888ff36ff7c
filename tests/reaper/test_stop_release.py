"""A stopped call releases what it still holds once, however often its engine is found to have stopped."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import cast

from hangup.config import BackendSettings, LimitSettings
from hangup.core import reasons
from hangup.core.admission import Ticket
from hangup.core.call import Call
from hangup.gateway.backend_set import Backends
from hangup.gateway.backends.backend import Backend
from hangup.gateway.call_lines import CallLines
from hangup.gateway.log import Log
from hangup.gateway.placement import Placed, Placement
from hangup.gateway.stopping import Attempt, Stopping


class World:
    """One backend with one call, which was sent."""

    def __init__(self, port: int = 9) -> None:
        loop, log, limits = asyncio.get_running_loop(), Log("none", 8), LimitSettings()
        self.backend = Backend(BackendSettings(url=f"http://127.0.0.1:{port}", slots=2, engine="openai"), limits, loop)
        self.placement = Placement(limits, Backends(loop, log, {}), loop)
        self.placement.use([self.backend])
        self.stopping = Stopping({}, self.placement, log, CallLines(log, loop, lambda: 0.0), 8)
        self.call = Call("c", time.monotonic())
        self.ticket = Ticket(cast(Placed, None), prompt=7)
        self.placement.admission.arrive(self.ticket, "ann", time.monotonic())
        self.call.received(time.monotonic())
        self.call.sent(self.backend.name, time.monotonic())
        self.attempt = Attempt(self.backend)
        self.attempt.key = "key"
        self.stopping.reaper.watch(self.backend)
        self.gone = 0

    def confirmed(self) -> None:
        self.gone += 1


def test_a_stop_that_is_confirmed_twice_frees_its_place_once() -> None:
    """A stale figure released the call; a later one showed it running, and a third one showed it gone."""

    async def run() -> None:
        world = World()
        stopping, load = world.stopping, world.backend.load
        world.call.end(reasons.CLIENT_FIN, time.monotonic())
        stop = stopping.abort(world.attempt, world.call, world.ticket, 1, keep_place=True)
        assert stop is not None and (stop.key, stop.cause) == ("key", "client_gone")
        world.placement.end(world.ticket, world.call, steady=True, hold=True)
        stopping.when_confirmed(stop, world.confirmed)
        assert (load.in_flight, load.held, world.gone) == (1, 1, 0)
        for _ in range(3):
            stopping.release(world.backend, stop)
            assert (load.in_flight, load.held, world.gone) == (0, 0, 1)
        stopping.when_confirmed(stop, world.confirmed)
        assert world.gone == 2, "whoever asks afterwards need not wait"
        await stopping.close()

    asyncio.run(run())


def test_a_failed_attempt_holds_no_place() -> None:
    """The call was retried elsewhere and took its place with it."""

    async def run() -> None:
        world = World()
        stopping, load = world.stopping, world.backend.load
        stop = stopping.abort(world.attempt, world.call, world.ticket, 1, keep_place=False)
        assert stop is not None and stop.cause == "engine_failed"
        stopping.release(world.backend, stop)
        assert (load.in_flight, load.held) == (1, 0), "the call itself"
        await stopping.close()

    asyncio.run(run())


def test_a_connection_that_was_opened_after_an_early_stop_is_cut() -> None:
    """The call was to be sent again on a new connection, while the departure of its client waited to be handled."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as engine:
            world = World(engine.getsockname()[1])
            world.stopping.stop_early(world.attempt)
            connection = world.attempt.connection = await world.backend.pool.connect()
            world.call.end(reasons.CLIENT_FIN, time.monotonic())
            assert world.stopping.abort(world.attempt, world.call, world.ticket, 1, keep_place=True) is not None
            is_cut = connection.transport.is_closing()
            world.backend.pool.close()
            await world.stopping.close()
            assert is_cut and world.attempt.connection is None

    asyncio.run(run())
