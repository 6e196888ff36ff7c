"""The job store and its runners in virtual time: any operation may fail, hang, or be the last of its process.

No acknowledged item is lost or run to its end twice, and in the end nothing is held. `HANGUP_SIM_SEEDS=2000` tries that many
seeds, starting at HANGUP_SIM_SEED.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.faulty_store import KINDS, Faults
from support.job_world import World

SEEDS, FIRST = int(os.environ.get("HANGUP_SIM_SEEDS", "30")), int(os.environ.get("HANGUP_SIM_SEED", "1"))
ALL = "HANGUP_SIM_SEEDS" in os.environ


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder in memory, if there is one: these files are written a thousand times."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="hangup-sim-", dir=place))
    yield path
    shutil.rmtree(path)


Story = Callable[[World], Coroutine[Any, Any, None]]


def simulate(folder: Path, seed: int, story: Story, faults: Faults, *, seen_dead: bool = True) -> list[str]:
    for path in folder.iterdir():
        path.unlink()
    return World(folder, seed, faults, seen_dead=seen_dead).run(story)


async def short(world: World) -> None:
    """Submit a call, a batch of three, and another batch that is cancelled, to two processes."""
    await asyncio.sleep(1)
    await world.submit(world.living[0], 0)
    await world.submit(world.living[0], 3)
    cancelled = await world.submit(world.living[-1], 2)
    if cancelled is not None:
        await asyncio.sleep(0.6)
        await world.cancel(world.living[-1], cancelled)


class TestEachOperation:
    @pytest.mark.parametrize("kind", KINDS)
    def test_of_a_short_story(self, folder: Path, kind: str) -> None:
        """Try each fault in turn; CI tries some of each kind."""
        faults = Faults()
        assert simulate(folder, 1, short, faults) == []
        found: dict[int, list[str]] = {}
        step, first = (1, 1) if ALL else (28, 1 + 4 * KINDS.index(kind))
        for n in range(first, faults.count, step):
            faults = Faults({n: kind})
            wrong = simulate(folder, 1, short, faults, seen_dead=n % 2 == 0)
            if wrong:
                found[n] = [*faults.happened, *wrong]
        assert not found


async def long(world: World) -> None:
    """Run everything for half a minute, while processes are paused, killed and drained, and a clock is set."""
    chance = world.chance
    promises = []
    for _ in range(30):
        await asyncio.sleep(chance.choice([0.0, 0.1, 1.0]))
        if not world.living:
            continue
        life = chance.choice(world.living)
        match chance.randrange(12):
            case 0 | 1 | 2:
                promises.append(await _soon(world.submit(life, 0, chance.choice([3600.0, 3.0]))))
            case 3 | 4 | 5:
                promises.append(await _soon(world.submit(life, chance.randint(1, 6))))
            case 6:
                known = [promise for promise in promises if promise is not None]
                if known:
                    await _soon(world.cancel(life, chance.choice(known)))
            case 11:
                for promise in filter(None, promises[-4:]):
                    await _soon(world.look_at(life, promise))
            case 7:
                life.process.stop()
                world.loop.call_later(chance.choice([0.5, 4.0, 15.0]), life.process.go_on)
            case 8:
                world.kill(life.process)
            case 9:
                await _soon(world.drain(life))
            case 10:
                world.set_by = chance.choice([0.0, -3600.0, 86400.0 * 400])
    world.set_by = 0.0
    for life in world.living:
        life.process.go_on()


async def _soon(work: Coroutine[Any, Any, Any]) -> Any:
    """Do not wait for a paused process, but count what it answers later."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=5)
    return task.result() if task.done() else None


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_seed(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    faults = Faults(chance=chance, rate=chance.choice([0.0, 0.002, 0.02]))
    wrong = simulate(folder, seed, long, faults, seen_dead=chance.random() < 0.5)
    assert not wrong, faults.happened
