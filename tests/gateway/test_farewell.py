"""A gateway that leaves the shared state says so, and is alive until it has."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from hangup.config import LimitSettings, Settings
from hangup.gateway.hosts import life
from hangup.gateway.hosts.life import Life
from hangup.gateway.hosts.link import StoreLink
from support.redis_server import require_redis


def test_a_gateway_lives_until_its_farewell_is_written() -> None:
    """A leader asks a gateway that is silent for a second whether it lives; a slow farewell would be taken for a death."""

    require_redis()  # its client

    async def main() -> list[Life]:
        link: Any = StoreLink(Settings(shared_state="redis://unused"), LimitSettings(), [0])
        address = await link._life.open("127.0.0.1", [0])
        found = []

        async def leave(*_: object) -> None:
            found.append(await life.ask(address, link.name))

        async def close() -> None:
            found.append(await life.ask(address, link.name))

        link.store, link.up = SimpleNamespace(leave=leave, close=close), True
        link._snapshot = lambda *, left: {"left": left}
        await link.close()
        return found

    assert asyncio.run(main(), debug=True) == [Life.LIVES, Life.REFUSED]
