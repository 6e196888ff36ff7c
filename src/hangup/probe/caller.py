"""Opens connections to the endpoint and sends calls; owns every connection, and keeps to the budget."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import ssl
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hangup import __version__
from hangup.probe.budget import ProbeBudget
from hangup.probe.connection import ProbeConnection, tls_reason
from hangup.probe.dialects import Dialect, Wish
from hangup.probe.endpoint import Endpoint, ProbeError
from hangup.probe.wire import request_head

CONNECT_S = 10.0
_STALLED_BUFFER_BYTES = 4096
_TASK = "Count upwards from 1, one number per line, and never stop."
_CHARACTERS_PER_TOKEN = 2.0  # of the prompts here, at least: they are mostly random digits
_LONG_PROMPTS = (1500, 375, 90)  # in words; the next one if an endpoint refuses the one before
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")  # what answered is not TLS


@dataclass(frozen=True, slots=True)
class CallKind:
    """What to ask for."""

    tokens: int
    stream: bool = True
    long_prompt: bool = False


class Caller:
    """A client of one endpoint, with one dialect."""

    def __init__(
        self, endpoint: Endpoint, addresses: list[tuple[int, tuple[object, ...]]], key: str, budget: ProbeBudget
    ) -> None:
        self.endpoint = endpoint
        self.budget = budget
        self.began_at = time.monotonic()
        self.dialect: Dialect = Dialect()
        self.model = ""
        self.extra_fields = True
        self.newer_limit = False
        self._long_prompts = list(_LONG_PROMPTS)
        self._addresses = addresses
        self._key = key
        self._tls: ssl.SSLContext | None = None
        self._connections: set[ProbeConnection] = set()

    @property
    def has_key(self) -> bool:
        return bool(self._key)

    def use_tls(self, context: ssl.SSLContext) -> None:
        self._tls = context

    async def connect(self, *, small_buffer: bool = False) -> ProbeConnection:
        """Open a connection; raise `OSError` if that fails. The first address that works is kept: all calls go to one place."""
        *others, last = self._addresses
        for address in others:
            try:
                connection = await self._connect(*address, small_buffer=small_buffer)
            except (OSError, TimeoutError):
                continue
            self._addresses = [address]
            return connection
        return await self._connect(*last, small_buffer=small_buffer)

    async def _connect(self, family: int, address: tuple[object, ...], *, small_buffer: bool) -> ProbeConnection:
        loop = asyncio.get_running_loop()
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if small_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _STALLED_BUFFER_BYTES)
            async with asyncio.timeout(CONNECT_S):
                await loop.sock_connect(sock, address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with _handshake_in_time():
                _, connection = await loop.create_connection(
                    lambda: ProbeConnection(self.dialect, sock),
                    sock=sock,
                    ssl=self._tls,
                    server_hostname=self.endpoint.host if self._tls is not None else None,
                )
        except BaseException:
            sock.close()
            raise
        self._connections = {one for one in self._connections if not one.lost} | {connection}
        return connection

    def request(self, kind: CallKind) -> tuple[bytes, bytes]:
        """Return the head and the body of a call; take it from the budget."""
        self.budget.check_time(time.monotonic() - self.began_at)
        nonce = uuid.uuid4().hex
        padding = f"{nonce[:4]} " * self._long_prompts[0] if kind.long_prompt else ""
        prompt = f"{nonce[:8]}: {padding}{_TASK}"  # each its own, so that no cache answers
        self.budget.take(kind.tokens + math.ceil(len(prompt) / _CHARACTERS_PER_TOKEN))
        wish = Wish(self.model, prompt, kind.tokens, kind.stream, self.extra_fields, self.newer_limit)
        body = json.dumps(self.dialect.body(wish)).encode()
        return self._head("POST", self.dialect.target(kind.stream), len(body), f"probe-{nonce[:12]}"), body

    def shorten_long_prompts(self) -> bool:
        """Make long prompts shorter, for an endpoint with a small context; return False if they are as short as they get."""
        if len(self._long_prompts) == 1:
            return False
        del self._long_prompts[0]
        return True

    def page_request(self, path: str) -> bytes:
        return self._head("GET", path, None, "")

    async def start(self, kind: CallKind, *, small_buffer: bool = False) -> ProbeConnection:
        """Send a call on a new connection."""
        head, body = self.request(kind)
        connection = await self.connect(small_buffer=small_buffer)
        connection.send(head, body, stream=kind.stream)
        return connection

    async def get(self, path: str, timeout_s: float = CONNECT_S) -> tuple[int, bytes, dict[str, str]]:
        """GET a page; return status 0 if there is no answer."""
        connection = await self.connect()
        try:
            connection.send(self.page_request(path), b"", stream=False)
            await connection.until_end(timeout_s)
            return connection.status if connection.done else 0, connection.body, connection.headers
        finally:
            connection.close()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _head(self, method: str, path: str, length: int | None, id: str) -> bytes:
        headers = {"User-Agent": f"hangup-probe/{__version__}", "Accept": "*/*", **self.dialect.headers(self._key)}
        if id:
            headers["X-Request-Id"] = id
        return request_head(method, self.endpoint.base + path, self.endpoint.authority, headers, length)


async def resolve(endpoint: Endpoint) -> list[tuple[int, tuple[object, ...]]]:
    """Look the host up; raise `ProbeError` if there is no such host."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            try:  # an address needs no lookup, and no thread for it
                found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            except socket.gaierror:
                found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "the lookup failed"
        raise ProbeError(f"there is no host {endpoint.host!r}: {reason}") from None
    return [(family, address) for family, _, _, _, address in found]


def tls_context(ca_file: str, *, insecure: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        what = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise ProbeError(f"--ca-file {ca_file}: {what}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class HandshakeTimeout(TimeoutError):
    """The peer accepted a connection, and did not answer the TLS handshake."""


@asynccontextmanager
async def _handshake_in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(CONNECT_S):
            yield
    except TimeoutError:
        raise HandshakeTimeout from None


def connect_problem(endpoint: Endpoint, error: Exception) -> ProbeError:
    """Return one clear line for a connection that failed."""
    where = f"{endpoint.host}:{endpoint.port}"
    match error:
        case ssl.SSLCertVerificationError():
            return ProbeError(f"{where}: its certificate is not trusted ({error.verify_message}); see --ca-file and --insecure")
        case ssl.SSLError() if error.reason not in _NO_TLS:
            return ProbeError(f"{where}: TLS failed: {tls_reason(error)}")
        case ssl.SSLError():
            return ProbeError(f"{where} does not speak TLS; try {endpoint.url.replace('https', 'http', 1)}")
        case ConnectionRefusedError():
            return ProbeError(f"nothing listens on {where}")
        case HandshakeTimeout():
            return ProbeError(f"{where} did not answer a TLS handshake within {CONNECT_S:g} s; does it want http://?")
        case TimeoutError():
            return ProbeError(f"{where} did not accept a connection within {CONNECT_S:g} s")
        case _:
            return ProbeError(
                f"cannot connect to {where}: {getattr(error, 'strerror', None) or error or 'it closed the connection'}"
            )
