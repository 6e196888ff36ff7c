"""Restarts engines with the operator's command. Commands come only from the configuration, and never go through a shell."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from typing import BinaryIO

from hangup.config import BackendSettings
from hangup.config.secrets import environment_without
from hangup.gateway.backends.pool import Address
from hangup.gateway.reaper import core_dumps


def command(template: str, settings: BackendSettings) -> list[str]:
    """Split the command into words and replace the backend's placeholders."""
    address = Address.of(settings)
    name = settings.name or address.authority
    known = {"{name}": name, "{url}": settings.url, "{host}": address.at, "{port}": str(address.port)}
    words = shlex.split(template)
    for mark, value in known.items():
        words = [word.replace(mark, value) for word in words]
    return words


async def start(words: list[str], hidden: frozenset[str], output: BinaryIO | None = None) -> Process:
    """Start a process in its own group, so that all of it can be stopped. It does not get the `hidden` variables, which hold
    others' secrets."""
    return await asyncio.create_subprocess_exec(
        *words,
        stdin=DEVNULL,
        stdout=output if output is not None else sys.stderr,
        stderr=STDOUT if output is not None else sys.stderr,
        start_new_session=True,
        env=environment_without(hidden),
        preexec_fn=_die_with_us if sys.platform == "linux" else core_dumps.allow_again,
    )


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_us() -> None:
    """Ask the kernel to kill the child when the gateway dies, even by kill -9. Runs in the child, before the command."""
    core_dumps.allow_again()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def end(process: Process, patience_s: float) -> None:
    """Send SIGTERM to the whole group, then SIGKILL after the timeout. The SIGKILL also hits whatever the leader left
    behind."""
    _signal_group(process, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await process.wait()
    _signal_group(process, signal.SIGKILL)
    await process.wait()


def _signal_group(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def run(words: list[str], hidden: frozenset[str], timeout_s: float) -> str:
    """Run the command. Return what went wrong, or ""."""
    try:
        process = await start(words, hidden)
    except OSError as error:
        return f"{words[0]}: {error.strerror or error}"
    try:
        async with asyncio.timeout(timeout_s):
            code = await process.wait()
    except TimeoutError:
        return f"{words[0]} timed out after {timeout_s:g} s"
    finally:
        if process.returncode is None:
            await end(process, 0.0)
    return f"{words[0]} exited with status {code}" if code else ""
