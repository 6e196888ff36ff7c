"""A plain proxy, like many others: it reads the engine's answer to its end even if the client is gone; with `closes`, it closes
the engine's connection then, as nginx does.

usage: python -m hangup.cli.demo_parts.plain_proxy ENGINE_PORT [closes]     (prints the port it listens on)
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import uvloop

from hangup.tasks import Tasks


async def serve(engine_port: int, *, closes: bool) -> None:
    # The loop references its tasks weakly, and a lost connection drops its reference: without this set, the garbage collector
    # would now and then end the call of a client that is gone, and the engine would notice.
    reading = Tasks("naive proxy")

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reading.start(handle(reader, writer))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            body = await reader.readexactly(length)
            engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", engine_port)
            engine_writer.write(head + body)
            watch = reading.start(close_with_client(reader, engine_writer)) if closes else None
            while data := await engine_reader.read(65536):
                if not writer.is_closing() and not reader.at_eof():
                    writer.write(data)
            engine_writer.close()
            if watch is not None:
                watch.cancel()
        writer.close()

    async def close_with_client(reader: asyncio.StreamReader, engine_writer: asyncio.StreamWriter) -> None:
        """Close the engine's connection as soon as the client is gone, also while the engine sends nothing."""
        with contextlib.suppress(OSError):
            while await reader.read(65536):
                pass
        engine_writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), closes="closes" in sys.argv[2:]))
