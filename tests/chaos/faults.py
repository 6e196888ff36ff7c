"""Faults of gateways, engines and the store. Each fault undoes itself; a target has only one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable

from chaos.world import Engine, GatewayProcess, World
from hangup.fake_engine.engine import LIES

# Live calls must not notice these, except that they may take longer.
HARMLESS = ("stop", "reload", "lock", "slow_store", "full_store", "clock", "engine_lies", "engine_late")


class Faults:
    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.done: Counter[str] = Counter()
        self.story: list[str] = []
        self.killed = False  # a gateway was killed with -9: its last ledger entries are lost
        self._chance = random.Random(f"{seed}-faults")
        self._began_at = time.monotonic()
        self._targets: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def actors(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "stop": self.stop,
            "stop_both": self.stop_both,
            "kill": self.kill,
            "drain": self.drain,
            "reload": self.reload,
            "lock": self.lock,
            "slow_store": self.slow_store,
            "full_store": self.full_store,
            "clock": self.clock,
            "engine_deaf": self.engine_deaf,
            "engine_slow": self.engine_slow,
            "engine_cuts": self.engine_cuts,
            "engine_fails": self.engine_fails,
            "engine_full": self.engine_full,
            "engine_dies": self.engine_dies,
            "engine_stops": self.engine_stops,
            "engine_lies": self.engine_lies,
            "engine_late": self.engine_late,
        }

    async def go_on(self, names: list[str], until: float) -> None:
        """Start faults one after the other, often several at a time, until it is time to heal."""
        actors = self.actors()
        running: set[asyncio.Task[None]] = set()
        while time.monotonic() < until:
            name = self._chance.choice(names)
            task = asyncio.create_task(self._one(name, actors[name]))
            running.add(task)
            task.add_done_callback(running.discard)
            await asyncio.sleep(0.3 + self._chance.random() * 2.0)
        await asyncio.gather(*running)

    async def _one(self, name: str, fault: Callable[[], Awaitable[None]]) -> None:
        await fault()
        self.done[name] += 1

    def _tell(self, text: str) -> None:
        self.story.append(f"{time.monotonic() - self._began_at:7.2f} {text}")

    # Gateways

    async def stop(self) -> None:
        gateway = self._chance.choice(self.world.gateways)
        seconds = self._chance.choice([0.3, 1.0, 3.0, 8.0])
        async with self._targets[gateway.name]:
            await self._stop_for([gateway], seconds)

    async def stop_both(self) -> None:
        """Stop both gateways for a while, as a paused virtual machine would."""
        seconds = self._chance.choice([1.0, 8.0])
        async with self._targets["a"], self._targets["b"]:
            await self._stop_for(self.world.gateways, seconds)

    async def _stop_for(self, gateways: list[GatewayProcess], seconds: float) -> None:
        self._tell(f"stop {[gateway.name for gateway in gateways]} for {seconds} s")
        began = time.monotonic()
        for gateway in gateways:
            gateway.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        for gateway in gateways:
            gateway.signal(signal.SIGCONT)
            gateway.stops.append((began, time.monotonic()))

    async def kill(self) -> None:
        gateway = self._chance.choice(self.world.gateways)
        async with self._targets[gateway.name]:
            self._tell(f"kill -9 {gateway.name}")
            self.killed = True
            gateway.deaths.append(time.monotonic())
            gateway.signal(signal.SIGKILL)
            await asyncio.sleep(self._chance.random() * 3)
            await asyncio.to_thread(gateway.process.popen.wait, 10)
            await asyncio.to_thread(gateway.restart)

    async def drain(self) -> None:
        gateway = self._chance.choice(self.world.gateways)
        async with self._targets[gateway.name]:
            self._tell(f"drain {gateway.name}")
            gateway.deaths.append(time.monotonic())
            gateway.signal(signal.SIGTERM)
            await asyncio.to_thread(gateway.process.popen.wait, 40)
            gateway.deaths.append(time.monotonic())
            await asyncio.to_thread(gateway.restart)

    async def reload(self) -> None:
        gateway = self._chance.choice(self.world.gateways)
        async with self._targets[gateway.name]:
            self._tell(f"reload {gateway.name}")
            gateway.signal(signal.SIGHUP)

    # The store

    async def lock(self) -> None:
        async with self._targets["store"]:
            seconds = self._chance.choice([0.5, 3.0, 7.0])
            self._tell(f"lock the store for {seconds} s")
            with self.world.locked():
                await asyncio.sleep(seconds)

    async def slow_store(self) -> None:
        async with self._targets["store"]:
            self._tell("a store that is slow for 4 s")
            for _ in range(12):
                with self.world.locked():
                    await asyncio.sleep(0.25)
                await asyncio.sleep(0.08)

    async def full_store(self) -> None:
        async with self._targets["store"]:
            self._tell("a disk that is full for 4 s")
            for gateway in self.world.gateways:
                gateway.may_write(self.world.store_size())
            await asyncio.sleep(4)
            for gateway in self.world.gateways:
                gateway.may_write(None)

    async def clock(self) -> None:
        async with self._targets["clock"]:
            ahead = self._chance.choice([-400 * 86_400, -3600, 3600, 31 * 86_400, 400 * 86_400])
            self._tell(f"a clock that is set by {ahead} s")
            self.world.clock.set(ahead)
            await asyncio.sleep(2 + self._chance.random() * 4)
            self.world.clock.set(0)

    # Engines

    async def engine_deaf(self) -> None:
        await self._behave("works on when its client leaves", 3, deaf=True, token_s=0.02)

    async def engine_slow(self) -> None:
        await self._behave("is slow", 4, token_s=0.1, prefill_s=0.5)

    async def engine_cuts(self) -> None:
        await self._behave("cuts answers off", 3, cut_after=self._chance.randint(1, 5))

    async def engine_fails(self) -> None:
        await self._behave("fails", 2, fail_status=self._chance.choice([500, 503]))

    async def engine_full(self) -> None:
        await self._behave("has no room", 2, fail_status=429)

    async def engine_lies(self) -> None:
        lies = ",".join(self._chance.sample(LIES, self._chance.randint(1, 3)))
        await self._behave(f"lies about {lies}", 4, lies=lies)

    async def engine_late(self) -> None:
        """Let a sound engine report its counters late, which is no reason to blame it."""
        engine, lag_s = self._chance.choice(self.world.sound), self._chance.choice([0.3, 1.0])
        async with self._targets[engine.name]:
            self._tell(f"{engine.name} tells of itself {lag_s} s late")
            await asyncio.to_thread(engine.behave, lag_s=lag_s)
            await asyncio.sleep(4)
            await self._well(engine)

    async def _behave(self, text: str, seconds: float, **values: object) -> None:
        engine = self._chance.choice(self.world.shaky)
        async with self._targets[engine.name]:
            self._tell(f"{engine.name} {text}")
            await asyncio.to_thread(engine.behave, **values)
            await asyncio.sleep(seconds)
            await self._well(engine)

    async def engine_dies(self) -> None:
        engine = self._chance.choice(self.world.shaky)
        async with self._targets[engine.name]:
            self._tell(f"{engine.name} dies")
            engine.process.signal(signal.SIGKILL)
            await asyncio.sleep(self._chance.random() * 3)
            await asyncio.to_thread(engine.process.popen.wait, 10)
            await asyncio.to_thread(engine.restart)

    async def engine_stops(self) -> None:
        engine = self._chance.choice(self.world.shaky)
        async with self._targets[engine.name]:
            seconds = self._chance.choice([1.0, 5.0])
            self._tell(f"{engine.name} stands still for {seconds} s")
            engine.process.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            engine.process.signal(signal.SIGCONT)

    async def _well(self, engine: Engine) -> None:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(engine.behave_again)
