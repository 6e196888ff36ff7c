"""Keeps connections to one backend alive. It reuses the newest first, so that the others can age out."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from hangup.config import BackendSettings, DiscoveredBackend, EngineLimits
from hangup.core import reasons
from hangup.errors import EngineFault, OutOfResources
from hangup.gateway.backends import nearby
from hangup.gateway.backends.connection import EngineConnection
from hangup.gateway.backends.own_lack import is_own_lack

_LAST_RESORT_S: Final = 0.25  # connect timeout for an engine that counts as down


@dataclass(frozen=True, slots=True)
class Address:
    """A backend's address, from its URL."""

    host: str
    port: int
    tls: bool
    prefix: str  # precedes the API's own path
    ip: str = ""  # where to connect, if DNS was asked already

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        assert parts.hostname is not None  # checked with the configuration
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, prefix)

    @classmethod
    def of(cls, settings: BackendSettings) -> Address:
        """Return a backend's address; one that was discovered is at an IP address behind the name in its URL."""
        address = cls.parse(settings.url)
        return replace(address, ip=settings.address) if isinstance(settings, DiscoveredBackend) else address

    @property
    def at(self) -> str:
        """Where to connect."""
        return self.ip or self.host

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


Dial = Callable[[Callable[[], EngineConnection]], EngineConnection]  # joins a new connection to an engine in this process


class Pool:
    """Opens, keeps and ages connections; `open` holds each one until it is closed."""

    __slots__ = ("_closed", "_dial", "_idle", "_loop", "_nearby", "_sweep", "_tls", "address", "limits", "open", "secret")

    def __init__(
        self, settings: BackendSettings, limits: EngineLimits, loop: asyncio.AbstractEventLoop, dial: Dial | None = None
    ) -> None:
        self._dial = dial
        self.address = Address.of(settings)
        self.secret = b""
        self.limits = limits
        self.open: set[EngineConnection] = set()
        self._loop = loop
        self._tls = _tls_context(settings) if self.address.tls else None
        self._nearby = None if self.address.tls else nearby.family_of(self.address.at, loop)
        self._idle: deque[EngineConnection] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def idle_connection(self) -> EngineConnection | None:
        """Return an open, idle connection, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.transport.is_closing():
                continue
            if connection.is_quiet():
                connection.reused = True
                return connection
            connection.abort()
        return None

    def connect_now(self) -> EngineConnection | None:
        """Return a new connection to an engine on this machine; None if it is elsewhere, or does not answer at once."""
        if self._dial is not None:
            connection = self._dial(self._new)
            self.open.add(connection)
            return connection
        if self._nearby is None:
            return None
        sock = nearby.connect(self._nearby, self.address.at, self.address.port, self.limits.engine_receive_bytes_max)
        if sock is None:
            return None
        connection = self._new()
        connection.begin(sock)
        try:
            nearby.make_transport(self._loop, sock, connection)
        except OSError:
            sock.close()
            return None
        self.open.add(connection)
        return connection

    def _new(self) -> EngineConnection:
        return EngineConnection(self, self.limits.engine_header_bytes_max, self.limits.engine_receive_bytes_max)

    async def connect(self, *, last_resort: bool = False) -> EngineConnection:
        """Open a new connection; raise `EngineFault` if that fails or times out.

        `last_resort`: the engine counts as down and the call has no other. It gets a short timeout, so that the client does not
        wait for a connection that will most probably fail.
        """
        if self._dial is not None and (joined := self.connect_now()) is not None:
            return joined
        address, connect_s = self.address, self.limits.connect_s
        within_s = min(connect_s, _LAST_RESORT_S) if last_resort else connect_s
        try:
            async with asyncio.timeout(within_s):
                _, connection = await self._loop.create_connection(
                    self._new,
                    address.at,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.host if address.tls else None,
                )
        except TimeoutError:
            raise EngineFault(reasons.ENGINE_UNREACHABLE, f"connect timed out after {within_s:g} s") from None
        except (OSError, ssl.SSLError, UnicodeError) as error:  # an invalid host name raises UnicodeError
            if await is_own_lack(error, address.at, address.port, self._loop):
                raise OutOfResources(reasons.OUT_OF_RESOURCES, f"cannot connect: {error}") from None
            raise EngineFault(reasons.ENGINE_UNREACHABLE, f"cannot connect: {error}") from None
        self.open.add(connection)
        return connection

    def put_back(self, connection: EngineConnection) -> None:
        if self._closed or len(self._idle) >= self.limits.engine_idle_connections_max or not self.limits.engine_idle_s:
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self.limits.engine_idle_s, self._drop_aged)

    def connection_closed(self, connection: EngineConnection) -> None:
        self.open.discard(connection)

    def close(self) -> None:
        """Cut all connections, idle or not."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._idle.clear()
        for connection in list(self.open):
            connection.abort()

    def close_idle(self) -> None:
        """Close the idle connections and accept none back; those in use may finish."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    def _drop_aged(self) -> None:
        self._sweep = None
        oldest_allowed = self._loop.time() - self.limits.engine_idle_s
        while self._idle and self._idle[0].idle_since <= oldest_allowed:
            self._idle.popleft().abort()
        if self._idle:
            wait = self._idle[0].idle_since - oldest_allowed
            self._sweep = self._loop.call_later(max(wait, 0.001), self._drop_aged)


def _tls_context(settings: BackendSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ca_file or None)
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
