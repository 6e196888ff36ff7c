"""The last step: damage the store for good, under load. Jobs may be refused or fail; live calls must not notice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal

from chaos.checks import harmed, idle
from chaos.load import Load
from chaos.world import GatewayProcess, World

_SECONDS = 5.0
_STOPS_S = 60.0


async def damaged(world: World, seed: int) -> tuple[str, list[str]]:
    """Damage the store; return how, and what went wrong then. These gateways are not used afterwards."""
    load = Load(world, seed + 1, first=1_000_000)
    clients = [asyncio.create_task(actor()) for actor in (load.streams, load.whole, load.calls, load.batches)]
    await asyncio.sleep(1)
    how = world.damage(random.Random(f"{seed}-damage"))
    await asyncio.sleep(_SECONDS)
    load.book.stopping = True
    await asyncio.gather(*clients)
    wrong = list(load.book.wrong)
    wrong += [f"with a damaged store: {text}" for text in harmed(load.book)]
    for gateway in world.gateways:
        wrong += [f"{gateway.name} ended by itself"] if not gateway.alive() else await idle(gateway)
    wrong += await asyncio.to_thread(_restarts, world.gateways[0])
    return how, wrong


def _restarts(gateway: GatewayProcess) -> list[str]:
    """Check that the gateway stops on SIGTERM, and then either starts again or says why it cannot."""
    gateway.signal(signal.SIGTERM)
    try:
        gateway.process.popen.wait(_STOPS_S)
    except Exception:
        return [f"{gateway.name} does not stop"]
    with contextlib.suppress(AssertionError):
        gateway.restart()
        return []
    said = "\n".join(gateway.process.stderr_lines)
    return [] if "cannot use" in said else [f"{gateway.name} does not start, and says {said[-500:]!r}"]
