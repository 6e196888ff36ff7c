"""A lean paced engine for the benchmarks: it must cost less than what it measures.

usage: python -m bench.engine PORT [--rate 50]

Streaming calls get chunks at `rate` per second, spread evenly over time, until their client disconnects or `max_tokens` is
reached. A call with `"instant": true` in its body gets its whole stream of 8 tokens at once; one without `stream`, or with
`"plain": true`, gets JSON. GET /stats returns how many connections and streams are open, and when each stream was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import cast

import uvloop

TICKS = 50  # groups of streams per period, so that the load is even

EVENT = (
    b'data: {"id":"chatcmpl-bench-000000000000","object":"chat.completion.chunk","created":1700000000,"model":"bench-model",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
FIRST = EVENT.replace(b'{"content":" token"}', b'{"role":"assistant","content":""}')
LAST = EVENT.replace(b'{"content":" token"}', b"{}").replace(b'"finish_reason":null', b'"finish_reason":"length"')
USAGE = (
    b'data: {"id":"chatcmpl-bench-000000000000","object":"chat.completion.chunk","created":1700000000,"model":"bench-model",'
    b'"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":8,"total_tokens":16}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNK = chunk(EVENT)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
JSON_BODY = json.dumps(
    {
        "id": "chatcmpl-bench-000000000000",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "bench-model",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": " token" * 8}, "logprobs": None, "finish_reason": "length"}
        ],
        "usage": {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 16},
    }
).encode()
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(JSON_BODY), JSON_BODY)
INSTANT = HEAD + b"".join(chunk(e) for e in [FIRST, *([EVENT] * 8), LAST, USAGE, DONE]) + b"0\r\n\r\n"


class State:
    def __init__(self) -> None:
        self.groups: list[set[Connection]] = [set() for _ in range(TICKS)]
        self.next = 0
        self.open = 0
        self.lost: dict[str, float] = {}  # x-request-id → when its connection was lost
        self.chunks = 0


class Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, state: State) -> None:
        self.state = state
        self.buffer = b""
        self.group: set[Connection] | None = None
        self.remaining = 0
        self.id = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.state.open += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.state.open -= 1
        if self.group is not None:
            self.group.discard(self)
            self.state.lost[self.id] = time.monotonic()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            self.handle(head, body)

    def handle(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"post"):
            if b'"plain"' in body or b'"stream":true' not in body.replace(b" ", b""):
                self.transport.write(JSON)
            elif b'"instant"' in body:
                self.transport.write(INSTANT)
            else:
                self.start_stream(head, body)
            return
        state = self.state
        stats = {"open": state.open, "streams": sum(map(len, state.groups)), "chunks": state.chunks, "lost": state.lost}
        models = {"object": "list", "data": [{"id": "bench-model", "object": "model", "created": 0, "owned_by": "bench"}]}
        text = json.dumps(stats if head.startswith(b"get /stats") else models).encode()
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text) + text
        )

    def start_stream(self, head: bytes, body: bytes) -> None:
        at = head.find(b"x-request-id:")
        self.id = head[at + 13 :].split(b"\r\n", 1)[0].strip().decode() if at >= 0 else ""
        self.remaining = int(json.loads(body).get("max_tokens") or 1 << 30)
        self.transport.write(HEAD + chunk(FIRST) + CHUNK)
        self.state.next = (self.state.next + 1) % TICKS
        self.group = self.state.groups[self.state.next]
        self.group.add(self)

    def tick(self) -> None:
        self.transport.write(CHUNK)
        self.remaining -= 1
        if self.remaining <= 0 and self.group is not None:
            self.group.discard(self)
            self.group = None
            self.transport.write(chunk(LAST) + chunk(DONE) + b"0\r\n\r\n")


def loopback_address(number: int) -> str:
    """Return an address of this host, 127.0.0.1 first: to a gateway, each is another engine."""
    return f"127.0.{number // 250}.{number % 250 + 1}"


async def main(port: int, rate: float, addresses: int) -> None:
    state = State()
    loop = asyncio.get_running_loop()
    # Several processes may share the port: one must not be what bounds a gateway of several workers.
    for number in range(addresses):
        host = loopback_address(number)
        server = await loop.create_server(lambda: Connection(state), host, port, backlog=8192, reuse_port=True)
        port = server.sockets[0].getsockname()[1]
    print(port, flush=True)
    due, turn = loop.time(), 0
    while True:
        due += 1 / rate / TICKS
        await asyncio.sleep(max(0.0, due - loop.time()))
        group = state.groups[turn]
        turn = (turn + 1) % TICKS
        state.chunks += len(group)
        for connection in list(group):
            connection.tick()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--addresses", type=int, default=1)
    arguments = parser.parse_args()
    uvloop.run(main(arguments.port, arguments.rate, arguments.addresses))
