"""`WorkerProcess`: one worker as the supervisor sees it: its process and its channel."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from asyncio.subprocess import Process
from collections.abc import Iterable, Sequence

from hangup.gateway.workers import metrics
from hangup.gateway.workers.channel import Channel, Message
from hangup.interpreter import command_for

Answer = tuple[int, str]  # status and body of an answer of the admin API


class WorkerProcess:
    """A worker process. `slot` is its number among the workers, which its successor gets as well; `name` is its own."""

    def __init__(self, slot: int, name: str, process: Process, channel: Channel) -> None:
        self.slot = slot
        self.name = name
        self.process = process
        self.channel = channel
        self.started_at = time.monotonic()
        self.ready = False  # it can serve calls
        self.leaving = False  # it drains, and another takes its slot
        self.failure = ""  # why it could not start, in its own words
        self.listens_on: frozenset[int] = frozenset()  # numbers of sockets, by the last message to it
        self.gateway = ""  # its name among the gateways that share their state by a store, if they do,
        self.reaches_store = False  # and whether it can, by its last report
        self.counted: metrics.Families = {}  # its metrics at the last scrape
        self._asked = 0
        self._answers: dict[int, asyncio.Future[Answer]] = {}

    def __repr__(self) -> str:
        return f"<worker {self.name} pid={self.process.pid} ready={self.ready} leaving={self.leaving}>"

    @classmethod
    async def start(cls, slot: int, name: str, sockets: Sequence[socket.socket]) -> WorkerProcess:
        """Start a process that can accept from each of the data port's sockets."""
        ours, theirs = socket.socketpair()
        fds = [theirs.fileno(), *(sock.fileno() for sock in sockets)]
        try:
            process = await asyncio.create_subprocess_exec(
                *(*command_for("hangup.gateway.workers"), *map(str, fds)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,  # a terminal's Ctrl-C reaches the supervisor alone, which then drains the workers
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(slot, name, process, await Channel.open(ours))

    # Questions

    async def ask(self, method: str, target: str, within_s: float) -> Answer | None:
        """Ask its admin API; return None if it does not answer in time, or dies."""
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            if not self.channel.send("ask", number=number, method=method, target=target):
                return None
            async with asyncio.timeout(within_s):
                return await answer
        except (TimeoutError, ConnectionError):
            return None
        finally:
            del self._answers[number]

    def answered(self, message: Message) -> None:
        future = self._answers.get(message["number"])
        if future is not None and not future.done():
            future.set_result((message["status"], message["body"]))

    def listen_on(self, numbers: Iterable[int]) -> None:
        wanted = frozenset(numbers)
        if wanted != self.listens_on:
            self.listens_on = wanted
            self.channel.send("listen", sockets=sorted(wanted))

    # Its end

    def kill(self) -> None:
        """Kill it with its process group; it may be stopped, or dead already."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def ended(self) -> None:
        """Release all that waits for it: the process is gone."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the worker died"))
        self.channel.close()
