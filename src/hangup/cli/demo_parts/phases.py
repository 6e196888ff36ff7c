"""Runs the demo's two phases and builds the table of their results."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from hangup.cli.demo_parts.crowd import CrowdTally, DemoCrowd
from hangup.errors import HangupError
from hangup.tasks import TASKS

ANSWER_TOKENS = 400
LOAD = 1.3  # × what the engine could serve if no client hung up
_START_S_MAX = 30.0
_REFRESH_S = 0.5
_METRIC = re.compile(rb"^hangup_engine_(\w+?)(?:_total)? ([\d.e+-]+)$", re.M)


@dataclass(frozen=True, slots=True)
class PhaseResult:
    name: str
    seconds: float
    tally: CrowdTally
    computed: float  # tokens, by the engine's own count
    busy_s: float

    @property
    def wasted(self) -> float:
        return max(0.0, self.computed - self.tally.tokens)

    @property
    def wasted_s(self) -> float:
        return self.busy_s * self.wasted / self.computed if self.computed else 0.0


async def play(
    seconds: float, slots: int, seed: int, show: Callable[[list[PhaseResult]], None], admin_port: int = 0
) -> list[PhaseResult]:
    """Run both phases at the same load, and call `show` regularly with the results so far.

    The gateway's dashboard is on `admin_port`.
    """
    rate = await _calibrated_rate(slots)
    results: list[PhaseResult] = []
    for name, front in (("without", _plain_proxy), ("with hangup", partial(_gateway, admin_port=admin_port))):
        async with _engine(slots) as engine_port, front(engine_port) as port:
            crowd = DemoCrowd(port, rate, ANSWER_TOKENS, seed)
            began = time.monotonic()
            arrivals = TASKS.start("crowd", crowd.run(seconds))
            try:
                while not arrivals.done():
                    await asyncio.wait([arrivals], timeout=min(_REFRESH_S, max(0.01, seconds - (time.monotonic() - began))))
                    result = await _phase_result(name, began, crowd.tally, engine_port)
                    show([*results, result])
            finally:
                arrivals.cancel()
                await asyncio.gather(arrivals, return_exceptions=True)
            results.append(result)
    return results


async def _phase_result(name: str, began: float, tally: CrowdTally, engine_port: int) -> PhaseResult:
    counters = await _counters(engine_port)
    computed = counters["tokens"] + counters["tokens_dropped"]
    return PhaseResult(name, time.monotonic() - began, tally, computed, counters["busy_seconds"])


async def _calibrated_rate(slots: int) -> float:
    """Return a rate of calls per second that is LOAD times what this machine's engine can answer."""
    async with _engine(slots) as port:
        crowd = DemoCrowd(port, 1.0, ANSWER_TOKENS, 0)
        await asyncio.gather(*[crowd._request(60.0, ANSWER_TOKENS) for _ in range(slots)])  # noqa: SLF001 (warm)
        began = time.monotonic()
        await asyncio.gather(*[crowd._request(60.0, ANSWER_TOKENS) for _ in range(slots)])  # noqa: SLF001
        return LOAD * slots / (time.monotonic() - began)


# Processes


@contextlib.asynccontextmanager
async def _process(*arguments: str, port: str) -> AsyncIterator[int]:
    """Run a hangup process; it is ready when it prints its port in a line that matches `port`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_START_S_MAX):
            lines = []
            while line := (await process.stdout.readline()).decode():
                lines.append(line)
                if found := re.search(port, line):
                    break
            else:
                raise HangupError(f"{' '.join(arguments)} did not start:\n{''.join(lines)}")
        yield int(found[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _engine(slots: int) -> contextlib.AbstractAsyncContextManager[int]:
    flags = ("--port", "0", "--slots", str(slots), "--waiting-max", "256")
    return _process("hangup", "engine", *flags, port=r"engine on http://127\.0\.0\.1:(\d+)")


def _plain_proxy(engine_port: int) -> contextlib.AbstractAsyncContextManager[int]:
    return _process("hangup.cli.demo_parts.plain_proxy", str(engine_port), port=r"^(\d+)$")


def _gateway(engine_port: int, admin_port: int) -> contextlib.AbstractAsyncContextManager[int]:
    flags = ("--port", "0", "--admin-port", str(admin_port), "--log", "none")
    return _process(
        "hangup", "serve", *flags, "--upstream", f"http://127.0.0.1:{engine_port}", port=r"serving http://127\.0\.0\.1:(\d+)"
    )


async def _counters(port: int) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n")
    text = await reader.read()
    writer.close()
    return {name.decode(): float(value) for name, value in _METRIC.findall(text)}


def table(results: list[PhaseResult]) -> list[str]:
    """Return the table with the figures of each phase side by side."""
    rows: list[tuple[str, Callable[[PhaseResult], str]]] = [
        ("", lambda o: o.name),
        ("seconds", lambda o: f"{o.seconds:.0f}"),
        ("requests", lambda o: f"{o.tally.requests:,}"),
        ("  completed", lambda o: f"{o.tally.completed:,}"),
        ("  abandoned by the client", lambda o: f"{o.tally.hung_up:,}"),
        ("tokens computed by the engine", lambda o: f"{o.computed:,.0f}"),
        ("  for nobody", lambda o: f"{o.wasted:,.0f} ({o.wasted / max(1.0, o.computed):.0%})"),
        ("engine time for nobody", lambda o: f"{o.wasted_s:.1f} s of {o.busy_s:.1f}"),
        ("first token, p50", lambda o: f"{o.tally.first_token(0.5):.2f} s"),
        ("first token, p99", lambda o: f"{o.tally.first_token(0.99):.2f} s"),
    ]
    return [f"  {label:<32}" + "".join(f"{value(o):>20}" for o in results) for label, value in rows]
