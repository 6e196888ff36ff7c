"""A worker on a host whose gateways share their state with other hosts: each worker is a gateway of its own there.

So a place that this host's workers do not use is as near to them as one that another host does not use, and a worker that dies
is found, and its calls are stopped, by whoever leads all gateways. The supervisor keeps the processes and the admin port.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from hangup.core.members.pace import REPORT_S
from hangup.gateway.gateway import Gateway
from hangup.gateway.hosts.link import StoreLink
from hangup.gateway.hosts.server import SharingServer
from hangup.gateway.workers.channel import Channel, Message
from hangup.gateway.workers.link import SupervisorLink
from hangup.gateway.workers.server import WorkerServer
from hangup.gateway.workers.settings import peer_ports


class StoreReports:
    """Implements `WorkerReports`: calls and places are in the store, and the supervisor learns only that this worker lives."""

    def __init__(self, channel: Channel, store_link: StoreLink) -> None:
        self._channel, self._store_link, self.peers = channel, store_link, store_link.peers

    def start(self, gateway: Gateway) -> None:
        self._live = gateway.registry.live

    def report(self) -> None:
        link = self._store_link
        self._channel.send("beat", live=len(self._live), gateway=link.name, reaches_store=link.up)

    async def report_for_ever(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self.report()

    def handle(self, kind: str, message: Message) -> bool:
        """Leave aside what the supervisor's hub says: it knows no calls."""
        return False

    async def close(self) -> None:
        """Do nothing: `SharingServer` leaves the store."""


class StoreWorkerServer(SharingServer, WorkerServer):
    def __init__(self, link: SupervisorLink, sockets: Sequence[socket.socket], slot: int, *, successor: bool) -> None:
        """`slot`: its number among the workers. `successor`: the host has served before."""
        WorkerServer.__init__(self, link, sockets)
        self._successor = successor
        self._connect_to_store(peer_ports(link.configuration.settings.peer_port, slot, len(sockets)))
        self._reports = StoreReports(link.channel, self._store_link)

    def _needs_store(self) -> bool:
        """A worker that takes another's place serves without the store, as that one would have."""
        return not self._successor and super()._needs_store()
