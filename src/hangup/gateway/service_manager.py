"""Speaks with systemd where it started this process: tells it when hangup is ready, reloads or stops, sends its watchdog a sign
of life from the event loop, and takes the sockets that it opened. Elsewhere nothing here does anything.

The protocols are datagrams and environment variables, so they need no library: sd_notify(3), sd_listen_fds(3).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, MutableMapping

from hangup.errors import HangupError
from hangup.tasks import TASKS

_FIRST_SOCKET = 3  # SD_LISTEN_FDS_START
_ADMIN_NAMES = ("admin", "hangup-admin", "hangup-admin.socket")  # FileDescriptorName=, or the unit's name without it
_UNSENT_MAX = 16  # messages that wait for a place in the manager's queue, which holds ten
_SIGNS_PER_PERIOD = 3  # of the watchdog: one may come late
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


class ServiceManager:
    """The service manager that started this process, or nobody."""

    def __init__(self) -> None:
        self._notify: socket.socket | None = None
        self._watchdog_s = 0.0
        self._unsent: deque[bytes] = deque(maxlen=_UNSENT_MAX)
        self._is_ready = False  # before that, systemd expects no signs of life
        self._sockets: dict[str, socket.socket] = {}

    def connect(self, environment: MutableMapping[str, str]) -> None:
        """Take what the environment offers. Remove it there, so that no worker or engine believes that it is meant."""
        given = {name: environment.pop(name, "") for name in _VARIABLES}
        if address := given["NOTIFY_SOCKET"]:
            self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._notify.setblocking(False)
            with contextlib.suppress(OSError):
                self._notify.connect("\0" + address[1:] if address[0] == "@" else address)
        if given["WATCHDOG_USEC"].isdigit() and given["WATCHDOG_PID"] in ("", str(os.getpid())):
            self._watchdog_s = int(given["WATCHDOG_USEC"]) / 1e6
        if given["LISTEN_FDS"].isdigit() and given["LISTEN_PID"] == str(os.getpid()):
            self._take_sockets(int(given["LISTEN_FDS"]), given["LISTEN_FDNAMES"].split(":"))

    def _take_sockets(self, count: int, names: list[str]) -> None:
        for number, name in zip(range(_FIRST_SOCKET, _FIRST_SOCKET + count), [*names, *[""] * count], strict=False):
            os.set_inheritable(number, False)
            what = "admin_port" if name in _ADMIN_NAMES else "port"
            try:
                sock = socket.socket(fileno=number)
            except OSError:
                raise HangupError(f"systemd passed file descriptor {number}, which is not a socket") from None
            is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if sock.family not in (socket.AF_INET, socket.AF_INET6) or not is_listening:
                hint = "use ListenStream=ADDRESS:PORT"
                raise HangupError(f"systemd passed a socket that does not listen on a TCP port\n  hint: {hint}")
            if what in self._sockets:
                hint = "name the one of the admin port with FileDescriptorName=admin"
                raise HangupError(f"systemd passed two sockets for the {what}\n  hint: {hint}")
            self._sockets[what] = sock

    def take_socket(self, what: str) -> socket.socket | None:
        """Return the socket for `port` or `admin_port`, once, if there is one."""
        return self._sockets.pop(what, None)

    def tell(self, *lines: str) -> None:
        """Send a message, or keep it until the manager reads: the event loop, which carries the calls, never waits for it."""
        if self._notify is not None:
            if not self._unsent:
                asyncio.get_running_loop().add_writer(self._notify, self._send_unsent)
            self._unsent.append("\n".join(lines).encode())
            self._send_unsent()

    def _send_unsent(self) -> None:
        assert self._notify is not None
        while self._unsent:
            try:
                self._notify.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                pass  # a manager that is gone is no reason to fail
            self._unsent.popleft()
        asyncio.get_running_loop().remove_writer(self._notify)

    def _send_sign(self) -> None:
        """Send the watchdog a sign of life. One that finds no place is dropped: those before it are still to be read."""
        if self._notify is not None and not self._unsent:
            with contextlib.suppress(OSError):
                self._notify.send(b"WATCHDOG=1")

    def ready(self, status: str) -> None:
        self._is_ready = True
        self.tell("READY=1", f"STATUS={status}")

    def stopping(self) -> None:
        self.tell("STOPPING=1", "STATUS=draining: live calls may finish")

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Mark the time of a reload: `systemctl reload` waits for its end."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            self.tell("READY=1")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Send signs of life from the event loop until the block ends: if the loop hangs, systemd kills and restarts hangup."""
        task = TASKS.keep("watchdog", self._send_signs) if self._notify is not None and self._watchdog_s else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()

    async def _send_signs(self) -> None:
        while True:
            if self._is_ready:
                self._send_sign()
            await asyncio.sleep(self._watchdog_s / _SIGNS_PER_PERIOD)


SERVICE_MANAGER = ServiceManager()
