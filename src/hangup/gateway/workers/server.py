"""A worker: a `Server` that gets its configuration and its sockets from the supervisor, and answers its questions."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence

from hangup.config import ClientLimits, Settings
from hangup.errors import HangupError
from hangup.gateway.admin.guard import Policy
from hangup.gateway.client.handshake import TlsListener
from hangup.gateway.gateway import Gateway
from hangup.gateway.server import Listener, Server
from hangup.gateway.store.ledger import LedgerStore
from hangup.gateway.tracing import Tracer
from hangup.gateway.view import AdminView
from hangup.gateway.workers.asgi import HOST
from hangup.gateway.workers.link import SupervisorLink, WorkerReports
from hangup.gateway.workers.reports import HubReports
from hangup.tasks import Tasks

SETTLE_S = 0.5  # between a worker's last accept and its drain: its newest connections have not sent their request yet


class WorkerServer(Server):
    _shares_log = True

    def __init__(self, link: SupervisorLink, sockets: Sequence[socket.socket]) -> None:
        super().__init__(link.configuration, lambda: link.configuration)
        self._supervisor = link
        self._reports: WorkerReports = HubReports(link.channel)
        self._sockets = sockets  # of the data port: its own, and those of the other workers
        self._listeners: dict[int, asyncio.Server | TlsListener] = {}
        self._wanted: frozenset[int] = frozenset()  # the sockets to accept from, by their numbers
        self._changes = Tasks("listen")
        self._changing = asyncio.Lock()
        self._ended = asyncio.Event()
        self._leaving = False

    # What differs from a process alone

    def _open_ports(self, settings: Settings) -> tuple[socket.socket, socket.socket]:
        return self._sockets[0], self._sockets[0]  # the supervisor has the admin port: this one only says where we are

    def _make_gateway(
        self, settings: Settings, loop: asyncio.AbstractEventLoop, store: LedgerStore, tracer: Tracer | None
    ) -> Gateway:
        return Gateway(settings, loop, self._log, self._dials, store, tracer, shares_slots=True, peers=self._reports.peers)

    async def _start_listening(self, sock: socket.socket) -> Listener:
        """Accept nobody yet: the supervisor says from which sockets, once this worker is ready."""
        self._supervisor.start(self, self._reports)
        return self

    async def _serve_admin(self, view: AdminView, sock: socket.socket, policy: Policy, limits: ClientLimits) -> None:
        self._supervisor.admin_app = self._admin_app(view, Policy.of("", "", HOST))
        self._supervisor.ready()
        await self._ended.wait()

    def _stop_admin(self) -> None:
        self._ended.set()

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Drain on a signal, however often it comes: systemd and terminals signal all processes, and the supervisor, too, asks
        for a drain. Only the supervisor can cut it short."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain_by_signal)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # the supervisor reloads

    def _drain_by_signal(self) -> None:
        """Leave new connections to the others, and drain when those that were just accepted have sent their requests."""
        if not self._leaving:
            self._leaving = True
            self._supervisor.channel.send("draining")
            self.listen_on(frozenset())
            asyncio.get_running_loop().call_later(SETTLE_S, self.drain)

    def drain(self) -> None:
        self._stop.set()

    def cut_drain_short(self) -> None:
        self._force.set()

    def _tell(self, text: str) -> None:
        self._supervisor.channel.send("tell", text=text)

    # Sockets

    def listen_on(self, numbers: frozenset[int]) -> None:
        self._wanted = numbers
        self._changes.start(self._change_listeners())

    async def _change_listeners(self) -> None:
        async with self._changing:
            for number in self._listeners.keys() - self._wanted:
                self._stop_accepting(self._listeners.pop(number))
            for number in self._wanted - self._listeners.keys():
                self._listeners[number] = await self._accept_from(self._sockets[number].dup())

    @staticmethod
    def _stop_accepting(listener: asyncio.Server | TlsListener) -> None:
        """Leave new connections to the others; those that were accepted stay."""
        if isinstance(listener, TlsListener):
            listener.stop_accepting()
        else:
            listener.close()

    def close(self) -> None:
        """Accept no more connections, because the process ends."""
        self._changes.cancel()
        self._wanted = frozenset()
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()


async def serve(link: SupervisorLink, make_server: Callable[[], WorkerServer]) -> bool:
    """Run a worker until the supervisor stops it, or is gone; return False if it could not start."""
    try:
        await make_server().run(lambda data_url, admin_url: None)
    except HangupError as error:
        link.channel.send("failed", error=str(error))
        return False
    finally:
        await link.close()
    return True
