"""Clients that send, mutilate and disconnect, and clients that check that they get their own answer and nothing else."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

from fuzz.grammar import Dice
from support.raw import Client

_WORDS = re.compile(rb"(?:check|odd|case)-\d+|POISON")
_PATIENCE_S = 20.0  # longer than any limit of the gateway under test: beyond it, something hangs


def odd_call(address: tuple[str, int], number: int) -> list[str]:
    """Send any request, and disconnect in any way."""
    dice = Dice(number)
    data = dice.request(number)
    if dice.maybe(0.15):
        data += dice.request(number)
    with contextlib.suppress(ConnectionError), Client(address) as client:
        for piece in dice.pieces(data):
            client.send(piece)
        match dice.randint(0, 4):
            case 0:
                client.fin()
            case 1:
                client.reset()
            case 2:
                with contextlib.suppress(OSError):  # already refused and cut off
                    client.half_close()
                return _answered(client, number)
            case _:
                return _answered(client, number)
    return []


def odd_answer(address: tuple[str, int], number: int) -> list[str]:
    """Make a good call to which the engine gives an odd answer."""
    dice = Dice(number)
    with contextlib.suppress(ConnectionError), Client(address) as client:
        path, value = dice.good_call(number)
        client.post(path, value, {"X-Request-Id": f"fz-{number}"})
        if dice.maybe(0.2):
            with contextlib.suppress(TimeoutError):
                client.sock.settimeout(0.01)
                client.read_some()
            client.reset()
            return []
        return _answered(client, number)
    return []


def batch_job(address: tuple[str, int], number: int) -> list[str]:
    """Upload a file of odd lines and create a batch of it; an accepted batch must end."""
    dice = Dice(number)
    lines = dice.batch_lines(number)
    form = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
    form += b'content-disposition: form-data; name="file"; filename="f"\r\n\r\n' + lines + b"\r\n--b--\r\n"
    with Client(address) as client:
        client.sock.settimeout(_PATIENCE_S)
        head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(form)}\r\n".encode()
        client.send(head + b"Content-Type: multipart/form-data; boundary=b\r\n\r\n" + form)
        got = client.read_answer()
        if got.status != 200:
            return [] if got.status < 500 else [f"job {number}: {got.status} {got.body[:200]!r}"]
        asked = {"input_file_id": got.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        client.post("/v1/batches", asked)
        got = client.read_answer()
        return [] if got.status < 500 else [f"job {number}: {got.status} {got.body[:200]!r}"]


def wrong_results(address: tuple[str, int]) -> list[str]:
    """When all batches have ended, check that their counts add up and that each result names its line."""
    found = []
    with Client(address) as client:
        client.sock.settimeout(_PATIENCE_S)
        client.send(b"GET /v1/batches?limit=100 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for batch in client.read_answer().json()["data"]:
            counts = batch["request_counts"]
            if batch["status"] == "completed" and counts["completed"] + counts["failed"] != counts["total"]:
                found.append(f"batch {batch['id']}: counts {counts}")
            for name in ("output_file_id", "error_file_id"):
                if batch.get(name):
                    client.send(f"GET /v1/files/{batch[name]}/content HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    rows = [json.loads(line) for line in client.read_answer().body.splitlines()]
                    found += [f"batch {batch['id']}: a result of nobody: {row}" for row in rows if not row.get("custom_id")]
    return found


def checked_call(address: tuple[str, int], number: int) -> list[str]:
    """Check that the call gets the right answer, whatever else happens; each word of it names the call that it is for."""
    dice = Dice(number)
    mine = f"check-{number}."
    found: list[str] = []
    with Client(address) as client:
        client.sock.settimeout(_PATIENCE_S)
        for _ in range(dice.randint(1, 3)):
            stream, plain = dice.maybe(0.5), dice.maybe(0.3)
            value: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": mine}], "stream": stream}
            path = "/v1/chat/completions"
            if plain:
                path, value = "/v1/embeddings", {"model": "m", "input": mine}
            client.post(path, value, {"X-Request-Id": f"fz-{number}"})
            try:
                got = client.read_answer()
            except (TimeoutError, ConnectionError, AssertionError) as error:
                return [*found, f"check {number}: {type(error).__name__} {error}"]
            words = {word.decode() for word in _WORDS.findall(got.body)}
            if got.status != 200 or not got.complete or words != {mine.rstrip(".")}:
                found.append(f"check {number}: {got.status}, {got.headers}, {got.body[:300]!r}")
    return found


def _answered(client: Client, number: int) -> list[str]:
    """Read until the end of the head or of the connection; only an answer that is not HTTP, or not ours, is wrong."""
    client.sock.settimeout(_PATIENCE_S)
    data = b""
    try:
        while len(data) < 10**6:
            more = client.sock.recv(65536)
            data += more
            if not more or b"\r\n\r\n" in data:
                break
    except ConnectionError:
        return []
    except TimeoutError:
        return []  # the request was incomplete, or the call may run up to its limits: the gateway bounds both
    if data and not data.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")):
        return [f"case {number}: an answer begins with {data[:80]!r}"]
    if b"POISON" in data.partition(b"\r\n\r\n")[0]:
        return [f"case {number}: another answer's bytes in a head: {data[:200]!r}"]
    head, _, body = data.partition(b"\r\n\r\n")
    if b"x-hangup-reason: internal_error" in head:
        return [f"case {number}: a fault: {body[:200]!r}"]
    with contextlib.suppress(ValueError):
        if b"application/json" in head and head.startswith(b"HTTP/1.1 4"):
            json.loads(body)
    return []
