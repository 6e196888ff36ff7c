"""Large bodies: a prompt of 1 MB, an answer of 15 MB of embeddings, a batch's result. No turn of the loop may take long.

Turns are measured inside the gateway (`watched_serve`), memory as the most that it had beyond what it had before.

usage: python -m bench.large
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvloop

from bench import targets, watched_serve

MB = 1024 * 1024
ROUNDS = 5
ITEMS = 2000  # of the batch
EMBEDDING = [0.0123456789] * 1024
_CHAT_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 200}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 200, "total_tokens": 209},
}


def _embeddings(size: int) -> bytes:
    row = {"object": "embedding", "index": 0, "embedding": EMBEDDING}
    count = size // len(json.dumps(row))
    usage = {"prompt_tokens": 9, "total_tokens": 9}
    return json.dumps({"object": "list", "data": [row] * count, "model": "m", "usage": usage}).encode()


async def _engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, large: bytes) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            await reader.readexactly(length)
            models = b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'
            body = large if b"/embeddings" in head else models if head.startswith(b"get") else json.dumps(_CHAT_ANSWER).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def _gateway() -> AsyncIterator[tuple[targets.Target, str]]:
    large = _embeddings(15 * MB)
    server = await asyncio.start_server(lambda r, w: _engine(r, w, large), "127.0.0.1", 0, limit=4 * MB)
    upstream = server.sockets[0].getsockname()[1]
    port, admin_port = targets.free_port(), targets.free_port()
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--port", str(port), "--admin-port", str(admin_port), "--upstream", f"http://127.0.0.1:{upstream}"]
        serve = ["serve", *flags, "--jobs", f"{folder}/jobs.sqlite", "--log", f"{folder}/log"]
        command = [sys.executable, "-m", "bench.watched_serve", f"{folder}/turns", *serve]
        with targets.started(command, stderr=subprocess.DEVNULL) as process:
            await asyncio.to_thread(targets.wait_for_port, port, process)
            await asyncio.sleep(1)
            yield targets.Target("hangup", port, [process], admin_port), f"{folder}/turns"
    server.close()


def _send(port: int, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"content-type": kind}, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return bytes(answer.read())


async def run() -> dict[str, Any]:
    async with _gateway() as (gateway, noted):
        prompt = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * (MB // 5)}]}).encode()
        turns_of = json.dumps(
            {
                "model": "m",
                "messages": [{"role": ("user", "assistant")[n % 2], "content": "word " * 40} for n in range(5000)],
                "stream": False,
            }
        ).encode()
        port = gateway.port
        rows = {
            "prompt of 1 MB": await _measure(gateway, noted, lambda: _send(port, "POST", "/v1/chat/completions", prompt)),
            "prompt of 1 MB in 5,000 messages": await _measure(
                gateway, noted, lambda: _send(port, "POST", "/v1/chat/completions", turns_of)
            ),
            "15 MB of embeddings": await _measure(
                gateway, noted, lambda: _send(port, "POST", "/v1/embeddings", b'{"model": "m", "input": "x"}')
            ),
        }
        batch = await asyncio.to_thread(_batch, port)
        rows["result of a batch"] = await _measure(gateway, noted, lambda: _send(port, "GET", f"/v1/files/{batch}/content"))
    for name, row in rows.items():
        print(_ROW.format(name, **row), flush=True)
    return rows


_ROW = """  {}: {took_ms:.0f} ms, answer of {answer_mb:.2f} MB
       longest turn {longest_turn_ms:.0f} ms (CPU {longest_turn_cpu_ms:.0f} ms); memory +{peak_mb:.1f} MB"""


async def _measure(gateway: targets.Target, noted: str, call: Callable[[], bytes]) -> dict[str, float]:
    _forget_peak(gateway)
    before, since = gateway.rss_kb(), time.monotonic()
    size, took = 0, []
    for _ in range(ROUNDS):
        start = time.monotonic()
        size = len(await asyncio.to_thread(call))
        took.append(time.monotonic() - start)
    await asyncio.sleep(0.2)
    turns = watched_serve.turns(noted, since, time.monotonic())
    return {
        "answer_mb": size / MB,
        "took_ms": sorted(took)[ROUNDS // 2] * 1e3,
        "longest_turn_ms": max((wall for wall, _ in turns), default=0.0) * 1e3,
        "longest_turn_cpu_ms": max((cpu for _, cpu in turns), default=0.0) * 1e3,
        "peak_mb": (_peak_kb(gateway) - before) / 1024,
    }


def _forget_peak(gateway: targets.Target) -> None:
    Path(f"/proc/{gateway.processes[0].pid}/clear_refs").write_text("5")


def _peak_kb(gateway: targets.Target) -> int:
    lines = Path(f"/proc/{gateway.processes[0].pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _batch(port: int) -> str:
    """Run a batch, and return the id of its output file."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = "\n".join(json.dumps({**line, "custom_id": f"item-{n}"}) for n in range(ITEMS))
    parts = ['--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n']
    parts += [f'--x\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n{lines}\r\n--x--\r\n']
    upload = _send(port, "POST", "/v1/files", "".join(parts).encode(), "multipart/form-data; boundary=x")
    asked = {"input_file_id": json.loads(upload)["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    job = json.loads(_send(port, "POST", "/v1/batches", json.dumps(asked).encode()))
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        job = json.loads(_send(port, "GET", f"/v1/batches/{job['id']}"))
        if job["status"] == "completed":
            return str(job["output_file_id"])
        time.sleep(0.2)
    raise RuntimeError(f"the batch did not complete: {job}")


if __name__ == "__main__":
    uvloop.run(run())
