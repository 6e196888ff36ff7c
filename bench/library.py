"""What the library costs an application: CPU of the server per chunk and per call, with hangup and without it."""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROUNDS = 5
WAYS = ("plain", "hangup")
CALLS, CHUNKS, CLIENTS = 400, 2000, 8


@dataclass(frozen=True)
class Question:
    """What is asked of the server: `calls` requests for `chunks` chunks each."""

    title: str
    what: str
    calls: int
    chunks: int

    @property
    def units(self) -> int:
        return self.calls * self.chunks


QUESTIONS = [
    Question("chunk of an async generator, bytes", "events", 16, CHUNKS),
    Question("chunk of an async generator, OpenAI's models", "chunks", 16, CHUNKS),
    Question("chunk of the same under `max_tokens`", "capped", 16, CHUNKS),
    Question("chunk of a blocking generator", "blocking", 8, 500),
    Question("call, whole answer (`run`)", "whole", CALLS, 1),
    Question("call, stream of one chunk", "events", CALLS, 1),
]


@contextmanager
def served() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        command = [
            sys.executable,
            "-m",
            "uvicorn",
            "bench.library_app:app",
            "--fd",
            str(listener.fileno()),
            "--loop",
            "asyncio",
        ]
        command += ["--http", "httptools", "--no-access-log", "--log-level", "warning", "--timeout-graceful-shutdown", "1"]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()], cwd=Path(__file__).resolve().parent.parent)
        port = listener.getsockname()[1]
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)


def cpu_s(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/cpu", timeout=60) as answer:
        return float(answer.read())


async def ask(port: int, question: Question, way: str) -> None:
    """Make the calls from a few clients at once, each over one connection."""
    request = f"GET /{question.what}/{way}?count={question.chunks} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        for _ in range(question.calls // CLIENTS):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if b"content-length: " in head.lower():
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            else:
                await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def run(rounds: int = ROUNDS) -> list[dict[str, Any]]:
    costs: dict[tuple[str, str], list[float]] = {(q.title, way): [] for q in QUESTIONS for way in WAYS}
    with served() as port:
        for question in QUESTIONS:  # warm
            for way in WAYS:
                await ask(port, question, way)
        for _ in range(rounds):
            for question in QUESTIONS:
                for way in WAYS:
                    before = await asyncio.to_thread(cpu_s, port)
                    await ask(port, question, way)
                    used = await asyncio.to_thread(cpu_s, port) - before
                    costs[question.title, way].append(used / question.units * 1e6)
    rows = []
    for question in QUESTIONS:
        plain, ours = (costs[question.title, way] for way in WAYS)
        rows.append({"what": question.title, "plain_us": plain, "hangup_us": ours})
        print(f"{question.title:48} {_shown(plain):>20} {_shown(ours):>20} µs")
    return rows


def _shown(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})"
