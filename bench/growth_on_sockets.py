"""How calls per second and CPU per call change with the number of backends, tenants and models, on real sockets; for
backends, beside nginx.

`growth` counts our own code alone; this is what a deployment sees. All gateways of a case run side by side and are measured in
turn, with 64 clients that draw tenant and model anew for each request; a figure is the median of its windows. The backends of
a gateway are one engine under as many addresses of this host, without health checks, whose own cost `growth` states.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import load, suites, targets
from bench.engine import loopback_address
from bench.growth import CASES, LEARNING, SIZES, Size
from bench.suites import Cost
from bench.targets import Target

CLIENTS = 64
WARM_UP_S = 1.5  # connections to engines end after 4 s without a call: a gateway that had to wait for its turn opens them anew


class Drawer(load.Requester):
    """A client each of whose requests is another one of those drawn."""

    def __init__(self, counter: list[int], requests: list[bytes], at: int) -> None:
        super().__init__(counter, requests[at])
        self._requests = requests
        self._at = at

    def data_received(self, data: bytes) -> None:
        self._at = (self._at + 1) % len(self._requests)
        self.data = self._requests[self._at]
        super().data_received(data)


async def run(rounds: int = 6) -> dict[str, Any]:
    """Print and return, per case and size, calls per second and the CPU time of a call."""
    rows = {}
    with targets.engine(addresses=max(SIZES)) as engine:
        for name, sizes in CASES.items():
            if name != LEARNING:
                rows[name] = await _grow(name, sizes, engine, rounds, _gateway)
        rows["nginx"] = await _grow("nginx: backends", CASES["backends"], engine, rounds, _nginx)
    return rows


def _nginx(size: Size, engine: Target) -> Any:
    return targets.nginx(engine.port, size.backends)


async def _grow(
    name: str, sizes: list[Size], engine: Target, rounds: int, start: Callable[[Size, Target], Any]
) -> dict[str, Any]:
    windows: list[list[Cost]] = [[] for _ in sizes]
    with contextlib.ExitStack() as stack:
        made = [(stack.enter_context(start(size, engine)), size.requests()) for size in sizes]
        for target, requests in made:
            await _window(target, requests, Cost("warm up"), 3.0)
        for _ in range(rounds):
            for (target, requests), costs in zip(made, windows, strict=True):
                costs.append(Cost(target.name))
                await _window(target, requests, costs[-1], 1.5)
    us = [median(cost.us for cost in costs) for costs in windows]
    rates = [median(cost.rate for cost in costs) for costs in windows]
    shown = "  ".join(f"{value:6.1f}" for value in us), "  ".join(f"{value:6.0f}" for value in rates)
    print(f"  {name:<38} {shown[0]} us   {us[-1] / us[0]:5.2f} x   {shown[1]} calls/s", flush=True)
    return {"us": us, "rates": rates, "grows": us[-1] / us[0]}


@contextlib.contextmanager
def _gateway(size: Size, engine: Target) -> Any:
    settings = size.settings()
    lines = []
    for at, backend in enumerate(settings.backend):
        models = f"models = {json.dumps(list(backend.models))}" if backend.models else ""
        url = f"http://{loopback_address(at)}:{engine.port}"
        lines.append(f'[[backend]]\nname = "{backend.name}"\nurl = "{url}"\nhealth_path = ""\n{models}')
    lines += [f'[[tenant]]\nname = "{each.name}"\nkey_sha256 = {json.dumps(list(each.key_sha256))}' for each in settings.tenant]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "hangup.toml"
        config.write_text("\n".join(lines))
        with targets.hangup(None, "--config", str(config)) as target:
            yield target


async def _window(target: Target, requests: list[bytes], cost: Cost, seconds: float) -> None:
    loop, counter, draw = asyncio.get_running_loop(), [0], random.Random(2)
    starts = [draw.randrange(len(requests)) for _ in range(CLIENTS)]
    made = [partial(Drawer, counter, requests, at) for at in starts]
    connections = [loop.create_connection(each, "127.0.0.1", target.port) for each in made]
    clients = [client for _, client in await asyncio.gather(*connections)]
    await asyncio.sleep(WARM_UP_S)
    await suites.window(target, counter, seconds, cost)
    for client in clients:
        client.transport.abort()
    await asyncio.sleep(0.1)


if __name__ == "__main__":
    import uvloop

    uvloop.run(run())
