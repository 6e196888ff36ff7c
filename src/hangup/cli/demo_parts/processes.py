"""The processes of the demo: engines, a plain proxy, the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import AsyncIterator
from typing import Any

import orjson

from hangup.errors import HangupError
from hangup.interpreter import command_for

START_S_MAX = 30.0
_ANSWER_S = 10.0
# With less patience than by default, because the demo takes a minute: when a stop that the engine does not confirm is late, and
# when an engine without progress is stuck.
_SOON = ("--release-grace-s", "1", "--prefill-grace-s", "1", "--still-s", "2", "--health-interval-s", "1")
_METRIC = re.compile(rb"^hangup_engine_(\w+?)(?:_total)? ([\d.e+-]+)$", re.M)
_SERVING = r"serving http://127\.0\.0\.1:(\d+)"
_FAKE_ENGINE = r"fake engine on http://127\.0\.0\.1:(\d+)"


@contextlib.asynccontextmanager
async def _process(module: str, *arguments: str, port: str) -> AsyncIterator[int]:
    """Run a hangup process; it is ready when it prints its port in a line that matches `port`."""
    process = await asyncio.create_subprocess_exec(
        *command_for(module), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S_MAX):
            lines = []
            while line := (await process.stdout.readline()).decode():
                lines.append(line)
                if found := re.search(port, line):
                    break
            else:
                raise HangupError(f"{' '.join((module, *arguments))} did not start:\n{''.join(lines)}")
        yield int(found[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def engine(slots: int) -> contextlib.AbstractAsyncContextManager[int]:
    flags = ("--port", "0", "--slots", str(slots), "--waiting-max", "256")
    return _process("hangup", "engine", *flags, port=r"engine on http://127\.0\.0\.1:(\d+)")


def fake_engine(flags: tuple[str, ...]) -> contextlib.AbstractAsyncContextManager[int]:
    return _process("hangup", "standin", "--port", "0", *flags, port=_FAKE_ENGINE)


def plain_proxy(engine_port: int, *flags: str) -> contextlib.AbstractAsyncContextManager[int]:
    return _process("hangup.cli.demo_parts.plain_proxy", str(engine_port), *flags, port=r"^(\d+)$")


def gateway(engine_port: int, admin_port: int) -> contextlib.AbstractAsyncContextManager[int]:
    flags = ("--port", "0", "--admin-port", str(admin_port), "--log", "none")
    return _process("hangup", "serve", *flags, "--upstream", f"http://127.0.0.1:{engine_port}", port=_SERVING)


def gateway_with_engine(
    engine_port: int, flags: tuple[str, ...], admin_port: int
) -> contextlib.AbstractAsyncContextManager[int]:
    """Run a gateway that runs a fake engine, and restarts it."""
    command = shlex.join([*command_for("hangup"), "standin", "--port", "{port}", *flags])
    own = ("--port", "0", "--admin-port", str(admin_port), "--log", "none", "--upstream", f"http://127.0.0.1:{engine_port}")
    return _process("hangup", "serve", *own, *_SOON, "--spawn", command, port=_SERVING)


async def engine_counters(port: int) -> dict[str, float]:
    text = await _ask(port, "GET", "/metrics")
    return {name.decode(): float(value) for name, value in _METRIC.findall(text)}


async def fake_engine_stats(port: int) -> dict[str, Any]:
    """Return the fake engine's counters; nothing while it does not answer."""
    try:
        found: dict[str, Any] = orjson.loads(await _ask(port, "GET", "/standin/stats"))
    except (OSError, EOFError, ValueError):
        return {}
    return found


async def fake_engine_was_asked(port: int, path: str) -> bool:
    """Return whether the fake engine got a request for this path; False while it does not answer."""
    try:
        seen = orjson.loads(await _ask(port, "GET", "/standin/seen"))["seen"]
    except (OSError, EOFError, ValueError):
        return False
    return any(row["path"] == path for row in seen)


async def tell_fake_engine(port: int, behaviour: dict[str, Any]) -> None:
    await _ask(port, "POST", "/standin/behave", orjson.dumps(behaviour))


async def _ask(port: int, method: str, path: str, body: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        writer.write(head.encode() + body)
        async with asyncio.timeout(_ANSWER_S):
            answer_head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", answer_head)
            return await (reader.readexactly(int(length[1])) if length else reader.read())
    finally:
        writer.close()
