"""The process of a gateway that shares its state with others: a `Server` with a `StoreLink`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial

from starlette.applications import Starlette

from hangup.config import ClientLimits, Settings
from hangup.config.load import Configuration
from hangup.errors import HangupError
from hangup.gateway.admin.guard import Policy
from hangup.gateway.admin.server import make_app
from hangup.gateway.gateway import Gateway
from hangup.gateway.hosts.admin import adopt_drains, make_gateways_app
from hangup.gateway.hosts.link import StoreLink
from hangup.gateway.hosts.sharable import check_for_sharing
from hangup.gateway.hosts.store import SharedStateFailed
from hangup.gateway.server import Listener, Server
from hangup.gateway.store.ledger import LedgerStore
from hangup.gateway.tracing import Tracer
from hangup.gateway.view import AdminView
from hangup.gateway.workers.asgi import HOST
from hangup.tasks import TASKS

_JOIN_LOOK_S = 0.1


class SharingServer(Server):
    def __init__(self, configuration: Configuration, load: Callable[[], Configuration]) -> None:
        super().__init__(configuration, load)
        self._connect_to_store([configuration.settings.peer_port])

    def _connect_to_store(self, peer_ports: Sequence[int]) -> None:
        """Others can ask at the first of these ports that is free whether this gateway lives."""
        settings = self.configuration.settings
        check_for_sharing(settings.backend)
        password = self._store_password if settings.shared_state_password else None
        self._store_link = StoreLink(settings, settings.limits, peer_ports, password)

    def _store_password(self) -> str:
        """Return the present password: a reload may have read another one."""
        return self.configuration.settings.shared_state_password.reveal()

    async def run(self, announce: Callable[[str, str], None]) -> None:
        if self._needs_store():
            try:
                await self._store_link.store.check()
            except SharedStateFailed as failure:
                raise HangupError(f"shared_state_required: {failure}") from None
        await super().run(announce)

    def _needs_store(self) -> bool:
        """Return whether this process must not start without the store."""
        return self.configuration.settings.shared_state_required

    def _make_gateway(
        self, settings: Settings, loop: asyncio.AbstractEventLoop, store: LedgerStore, tracer: Tracer | None
    ) -> Gateway:
        return Gateway(settings, loop, self._log, self._dials, store, tracer, shares_slots=True, peers=self._store_link.peers)

    async def _with_found_backends(self, settings: Settings) -> Settings:
        check_for_sharing(settings.backend)
        return await super()._with_found_backends(settings)

    async def _start_listening(self, sock: socket.socket) -> Listener:
        self._store_link.start(self.gateway)
        while not await self._store_link.joined(_JOIN_LOOK_S):
            self._stalls.beat()  # this wait is no stall
        if not self._store_link.up:
            self._tell(f"{self._store_link.failure}; this gateway serves alone until that changes")
        else:
            drain = partial(self.gateway.backends.drain, on=True)
            adopting = TASKS.start("drains", adopt_drains(self._store_link, drain))
            while not (await asyncio.wait([adopting], timeout=_JOIN_LOOK_S))[0]:
                self._stalls.beat()  # if it failed, that is logged, and no reason not to serve
        return await super()._start_listening(sock)

    async def _serve_admin(self, view: AdminView, sock: socket.socket, policy: Policy, limits: ClientLimits) -> None:
        view.shared_state = self._store_link
        await super()._serve_admin(view, sock, policy, limits)

    def _admin_app(self, view: AdminView, policy: Policy) -> Starlette:
        self._store_link.questions.app = make_app(view, Policy.of("", "", HOST))
        return make_gateways_app(self._store_link, make_app(view, policy), policy)

    async def _let_clients_read(self, within_s: float) -> None:
        """All calls have ended: once the engines were told, others may use what this gateway held."""
        await super()._let_clients_read(within_s)
        await self.gateway.stopping.aborts.wait()
        await self._store_link.close()
