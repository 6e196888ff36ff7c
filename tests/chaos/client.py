"""A minimal client: one request per connection, so that every byte belongs to a known request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple


class Broken(Exception):
    """The connection ended before the answer did."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def request(
    port: int, method: str, path: str, body: bytes | dict[str, Any] = b"", timeout_s: float = 90.0, **headers: str
) -> Answer:
    """Return the whole answer; raise `Broken` if it is missing or incomplete, `TimeoutError` if it does not end."""
    async with asyncio.timeout(timeout_s):
        status, fields, pieces = await begin(port, method, path, body, **headers)
        return Answer(status, fields, b"".join([piece async for piece in pieces]))


async def begin(
    port: int, method: str, path: str, body: bytes | dict[str, Any] = b"", **headers: str
) -> tuple[int, dict[str, str], AsyncIterator[bytes]]:
    """Return the head of the answer, and the pieces of its body as they come."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    framing = {"connection": "close", "content-length": str(len(payload)), "content-type": "application/json"}
    fields = framing | {name.replace("_", "-"): value for name, value in headers.items()}
    status, named, reader, writer = await _ask(port, f"{method} {path}", fields, payload)
    return status, named, _pieces(reader, writer, named)


async def _ask(
    port: int, target: str, headers: dict[str, str], payload: bytes = b""
) -> tuple[int, dict[str, str], asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request on a new connection; return its answer's status and headers, and the connection."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        raise Broken(f"no connection: {error}") from None
    lines = [f"{name}: {value}" for name, value in headers.items()]
    try:
        writer.write("\r\n".join([f"{target} HTTP/1.1", "host: chaos", *lines, "", ""]).encode() + payload)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (OSError, asyncio.IncompleteReadError) as error:
        writer.close()
        raise Broken(f"no answer: {type(error).__name__}") from None
    except BaseException:
        writer.transport.abort()
        raise
    named = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return int(head[0].split(" ")[1]), named, reader, writer


class Talk:
    """A WebSocket, or the answer that refused it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: int, headers: dict[str, str], body: bytes
    ) -> None:
        self.status, self.headers, self.body = status, headers, body
        self._reader, self._writer = reader, writer

    async def ask(self, text: str) -> str:
        """Send a text and return the one that comes back."""
        self._writer.write(_frame(0x1, text.encode()))
        return (await self._read())[1].decode()

    async def leave(self, how: str, *, in_the_midst: bool) -> None:
        if in_the_midst:
            self._writer.write(_frame(0x1, b"a text that is cut")[: 9 if how != "close" else None])
        if how == "close":
            self._writer.write(_frame(0x8, b"\x03\xe8"))
            while (await self._read())[0] != 0x8:
                pass
            self._writer.close()
        elif how == "fin":
            self._writer.close()
        else:
            self._writer.transport.abort()

    async def _read(self) -> tuple[int, bytes]:
        try:
            first, second = await self._reader.readexactly(2)
            length = second & 0x7F
            if length == 126:
                length = int.from_bytes(await self._reader.readexactly(2), "big")
            payload = await self._reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Broken(f"cut off: {type(error).__name__}") from None
        if first & 0x0F == 0x8 and payload[:2] != b"\x03\xe8":  # the gateway's own goodbye
            raise Broken(f"closed: {payload[2:].decode()}")
        return first & 0x0F, payload


def _frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([0x80 | opcode]) + length + b"\0\0\0\0" + payload  # a mask of zeros changes nothing


async def talk(port: int, id: str) -> Talk:
    """Open a WebSocket."""
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    key = {"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "x-request-id": id}
    status, named, reader, writer = await _ask(port, "GET /v1/realtime", upgrade | key)
    if status == 101:
        return Talk(reader, writer, status, named, b"")
    refusal = b"".join([piece async for piece in _pieces(reader, writer, named)])
    return Talk(reader, writer, status, named, refusal)


async def _pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: dict[str, str]) -> AsyncIterator[bytes]:
    try:
        if headers.get("transfer-encoding") == "chunked":
            while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
                yield (await reader.readexactly(size + 2))[:-2]
        elif "content-length" in headers:
            yield await reader.readexactly(int(headers["content-length"]))
        else:
            while data := await reader.read(65_536):
                yield data
    except (OSError, asyncio.IncompleteReadError) as error:
        raise Broken(f"cut off: {type(error).__name__}") from None
    finally:
        writer.transport.abort()
