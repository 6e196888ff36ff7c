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
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        raise Broken(f"no connection: {error}") from None
    lines = [f"{method} {path} HTTP/1.1", "host: chaos", "connection: close", f"content-length: {len(payload)}"]
    fields = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines += [f"{name}: {value}" for name, value in fields.items()]
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + payload)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (OSError, asyncio.IncompleteReadError) as error:
        writer.close()
        raise Broken(f"no answer: {type(error).__name__}") from None
    except BaseException:
        writer.transport.abort()
        raise
    named = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return int(head[0].split(" ")[1]), named, _pieces(reader, writer, named)


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
