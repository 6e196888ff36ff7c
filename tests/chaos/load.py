"""Clients that call until they are stopped, and record what they were promised and what they got."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from chaos.client import Broken, begin, request, talk
from chaos.world import GatewayProcess, World
from hangup.fake_engine.engine import EXTRA_USAGE_TOKENS
from hangup.fake_engine.openai_responses import FakeChat

CHAT = "/v1/chat/completions"
LEFT_TOKENS = 200
ENDED = ("completed", "failed", "cancelled", "expired")
FORM = {"content_type": "multipart/form-data; boundary=chaos"}


@dataclass
class Promise:
    """An acknowledged job."""

    id: str
    kind: str
    model: str
    items: int
    tokens: int
    cancelled: bool = False  # a client cancelled it or let its lease expire


@dataclass
class Book:
    promises: dict[str, Promise] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    cut: list[tuple[GatewayProcess, str, float, float]] = field(
        default_factory=list
    )  # calls that broke off, with start and end
    complete: list[tuple[GatewayProcess, str]] = field(default_factory=list)  # fully answered live calls
    stopping: bool = False


class Load:
    def __init__(self, world: World, seed: int, first: int = 0) -> None:
        """Number the models from `first` on."""
        self.world = world
        self.book = Book()
        self._seed = seed
        self._number = first

    def actors(self) -> dict[str, Any]:
        return {
            "streams": self.streams,
            "whole": self.whole,
            "hangups": self.hangups,
            "websockets": self.websockets,
            "calls": self.calls,
            "responses": self.responses,
            "batches": self.batches,
            "readers": self.readers,
        }

    def _chance(self, who: str) -> random.Random:
        return random.Random(f"{self._seed}-{who}")

    def _model(self, kind: str) -> str:
        self._number += 1
        return f"{kind}{self._number}"

    # Live calls

    async def streams(self) -> None:
        chance = self._chance("streams")
        await self._several(4, lambda: self._stream(chance.choice(self.world.gateways), chance.randint(1, 60)), chance)

    async def whole(self) -> None:
        chance = self._chance("whole")
        await self._several(3, lambda: self._whole(chance.choice(self.world.gateways), chance.randint(1, 40)), chance)

    async def hangups(self) -> None:
        chance = self._chance("hangups")
        await self._several(3, lambda: self._hang_up(chance.choice(self.world.gateways), chance.random() * 0.5), chance)

    async def _several(self, count: int, make: Any, chance: random.Random) -> None:
        async def one() -> None:
            while not self.book.stopping:
                await make()
                await asyncio.sleep(chance.random() * 0.15)

        await asyncio.gather(*(one() for _ in range(count)))

    async def _stream(self, gateway: GatewayProcess, tokens: int) -> None:
        started, id = time.monotonic(), self._model("s")
        request = {"model": "live", "messages": [{"role": "user", "content": id}], "max_tokens": tokens, "stream": True}
        try:
            async with asyncio.timeout(120):
                status, headers, pieces = await begin(gateway.port, "POST", CHAT, request, x_request_id=id)
                body = b"".join([piece async for piece in pieces])
        except (Broken, TimeoutError) as error:
            self._broken(gateway, started, "stream", id, error)
            return
        if headers.get("x-request-id", id) != id:
            self.book.wrong.append(f"{id} got the answer to {headers['x-request-id']}")
        if status != 200:
            self._refused("stream", status, headers, body)
        elif b"data: [DONE]" in body:
            if (got := streamed(body)) != words(id, tokens):
                self.book.wrong.append(f"{id} says it is complete, and is not its own answer of {tokens} tokens: {got[:200]!r}")
            self._completed("stream", gateway, id)
        elif b'"error"' in body:
            self.book.outcomes["stream error event"] += 1
        else:
            self.book.wrong.append(f"{id}: a stream without an end: {body[-200:]!r}")

    async def _whole(self, gateway: GatewayProcess, tokens: int) -> None:
        started, id = time.monotonic(), self._model("w")
        body = {"model": "live", "messages": [{"role": "user", "content": id}], "max_tokens": tokens}
        try:
            answer = await request(gateway.port, "POST", CHAT, body, 120, x_request_id=id)
        except (Broken, TimeoutError) as error:
            self._broken(gateway, started, "whole", id, error)
            return
        if answer.status != 200:
            self._refused("whole", answer.status, answer.headers, answer.body)
            return
        if not is_answer(answer.json(), id, tokens):
            self.book.wrong.append(f"{id} is not its own answer of {tokens} tokens: {answer.body[:300]!r}")
        self._completed("whole", gateway, id)

    def _completed(self, what: str, gateway: GatewayProcess, id: str) -> None:
        self.book.complete.append((gateway, id))
        self.book.outcomes[f"{what} complete"] += 1

    async def _hang_up(self, gateway: GatewayProcess, after_s: float) -> None:
        body = {"model": "left", "messages": [{"role": "user", "content": "x"}], "max_tokens": LEFT_TOKENS, "stream": True}
        try:
            async with asyncio.timeout(after_s):
                await request(gateway.port, "POST", CHAT, body)
        except (Broken, TimeoutError):
            self.book.outcomes["left"] += 1

    async def websockets(self) -> None:
        chance = self._chance("websockets")
        await self._several(3, lambda: self._websocket(chance.choice(self.world.gateways), chance), chance)

    async def _websocket(self, gateway: GatewayProcess, chance: random.Random) -> None:
        """Talk for a while; then say goodbye, hang up in the midst of it, or reset the connection."""
        started, id, leave = time.monotonic(), self._model("x"), chance.choice(["close", "fin", "reset"])
        try:
            async with asyncio.timeout(120):
                socket = await talk(gateway.port, id)
                if socket.status != 101:
                    self._refused("websocket", socket.status, socket.headers, socket.body)
                    return
                for number in range(chance.randint(0, 30)):
                    text = f"{id} says {number} {'x' * chance.choice([0, 10, 3000])}"
                    if (heard := await socket.ask(text)) != text:
                        self.book.wrong.append(f"{id} at {gateway.name} heard {heard[:100]!r} instead of {text[:100]!r}")
                        return
                try:
                    await socket.leave(leave, in_the_midst=chance.random() < 0.5)
                except Broken:  # the engine did not answer its goodbye
                    leave = "close unanswered"
        except (Broken, TimeoutError) as error:
            self._broken(gateway, started, "websocket", id, error)
            return
        self.book.outcomes[f"websocket {leave}"] += 1
        if leave == "close":
            self.book.complete.append((gateway, id))

    def _refused(self, what: str, status: int, headers: dict[str, str], body: bytes) -> None:
        if status < 400 or status == 500 or b'"error"' not in body:
            self.book.wrong.append(f"{what}: answered {status} {body[:200]!r}")
        self.book.outcomes[f"{what} {status} {headers.get('x-hangup-reason', '?')}"] += 1

    def _broken(self, gateway: GatewayProcess, started: float, what: str, id: str, error: Exception) -> None:
        """Record a broken call. It is right if its gateway stopped while it ran, or if its log line blames the engine."""
        if isinstance(error, TimeoutError):
            self.book.wrong.append(f"{what} at {gateway.name}: no end after 120 s")
        else:
            self.book.cut.append((gateway, id, started, time.monotonic()))
        self.book.outcomes[f"{what} broken"] += 1

    # Jobs

    async def calls(self) -> None:
        chance = self._chance("calls")
        await self._several(3, lambda: self._call(chance), chance)

    async def _call(self, chance: random.Random) -> None:
        gateway, model, tokens = chance.choice(self.world.gateways), self._model("call"), chance.randint(1, 30)
        body = {"model": model, "messages": [{"role": "user", "content": model}], "max_tokens": tokens}
        body["stream"] = chance.random() < 0.3
        try:
            answer = await request(gateway.port, "POST", CHAT, body, 30, prefer="respond-async", x_hangup_lease="3600")
        except (Broken, TimeoutError):
            self.book.outcomes["call not acknowledged"] += 1
            return
        if answer.status == 200:  # run as a live call: the gateway has just started, and the store is locked
            self.book.outcomes["call answered at once"] += 1
            return
        if answer.status != 202:
            self._refused("call", answer.status, answer.headers, answer.body)
            return
        promise = Promise(answer.json()["id"], "call", model, 1, tokens)
        self.book.promises[promise.id] = promise
        self.book.outcomes["call acknowledged"] += 1
        if chance.random() < 0.15:
            await self._cancel(promise, chance, "DELETE", f"/v1/jobs/{promise.id}")

    async def responses(self) -> None:
        chance = self._chance("responses")
        await self._several(2, lambda: self._response(chance), chance)

    async def _response(self, chance: random.Random) -> None:
        """Create a background response and read its events: a stream that ends without being cut off must have a last event."""
        gateway, model, tokens = chance.choice(self.world.gateways), self._model("response"), chance.randint(1, 30)
        body = {"model": model, "input": "x", "background": True, "stream": True, "max_output_tokens": tokens}
        seen = b""
        try:
            async with asyncio.timeout(90):
                status, headers, pieces = await begin(gateway.port, "POST", "/v1/responses", body, x_hangup_lease="3600")
                async for piece in pieces:
                    seen += piece
                    self._heard_of(seen, model, tokens)
        except (Broken, TimeoutError):
            self.book.outcomes["response broken"] += 1
            return
        if status != 200:
            self._refused("response", status, headers, seen)
            return
        # Heartbeats may follow it while the store cannot save the result.
        ended = any(b"event: response." + name in seen for name in (b"completed", b"failed", b"cancelled", b"incomplete"))
        if not ended and b"event: error" not in seen:
            self.book.wrong.append(f"{model} at {gateway.name}: its events end with {seen[-200:]!r}")
        self.book.outcomes["response heard out"] += 1

    def _heard_of(self, seen: bytes, model: str, tokens: int) -> None:
        """Record the response as a promise from its first event on."""
        found = re.search(rb'"id":"(resp_[0-9a-f]+)"', seen)
        if found is not None and found[1].decode() not in self.book.promises:
            id = found[1].decode()
            self.book.promises[id] = Promise(id, "response", model, 1, tokens)

    async def batches(self) -> None:
        chance = self._chance("batches")
        await self._several(2, lambda: self._batch(chance), chance)

    async def _batch(self, chance: random.Random) -> None:
        gateway, model = chance.choice(self.world.gateways), self._model("batch")
        items, tokens = chance.randint(1, 40), chance.randint(1, 12)
        await asyncio.sleep(chance.random())
        body = {"model": model, "max_tokens": tokens}
        bodies = [{**body, "messages": [{"role": "user", "content": f"{model} r{n}"}]} for n in range(items)]
        lines = [{"custom_id": f"r{n}", "method": "POST", "url": CHAT, "body": body} for n, body in enumerate(bodies)]
        try:
            file = await request(gateway.port, "POST", "/v1/files", _form("\n".join(map(json.dumps, lines))), 30, **FORM)
            if file.status != 200:
                self._refused("file", file.status, file.headers, file.body)
                return
            body = {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
            answer = await request(chance.choice(self.world.gateways).port, "POST", "/v1/batches", body, 30)
        except (Broken, TimeoutError):
            self.book.outcomes["batch not acknowledged"] += 1
            return
        if answer.status != 200:
            self._refused("batch", answer.status, answer.headers, answer.body)
            return
        promise = Promise(answer.json()["id"], "batch", model, items, tokens)
        self.book.promises[promise.id] = promise
        self.book.outcomes["batch acknowledged"] += 1
        if chance.random() < 0.1:
            await self._cancel(promise, chance, "POST", f"/v1/batches/{promise.id}/cancel")

    async def _cancel(self, promise: Promise, chance: random.Random, method: str, path: str) -> None:
        promise.cancelled = True
        await asyncio.sleep(chance.random() * 0.5)
        try:
            answer = await request(chance.choice(self.world.gateways).port, method, path, timeout_s=40)
            self.book.outcomes[f"cancel {answer.status}"] += 1
        except (Broken, TimeoutError):
            self.book.outcomes["cancel broken"] += 1

    async def readers(self) -> None:
        """Read jobs and their events at either gateway."""
        chance = self._chance("readers")

        async def read() -> None:
            calls = [promise for promise in self.book.promises.values() if promise.kind == "call"][-20:]
            if not calls:
                return
            id, gateway = chance.choice(calls).id, chance.choice(self.world.gateways)
            path = f"/v1/jobs/{id}/events" if chance.random() < 0.5 else f"/v1/jobs/{id}"
            try:
                answer = await request(gateway.port, "GET", path, timeout_s=20)
            except (Broken, TimeoutError):
                return
            if answer.status in (404, 500):
                self.book.wrong.append(f"{id} at {gateway.name}: {answer.status}")
            _, _, end = answer.body.rpartition(b"event: end\n")
            if answer.status == 200 and end.startswith(b"data: ") and json.loads(end[6:])["status"] not in ENDED:
                self.book.wrong.append(f"{id} at {gateway.name}: the end of its events is told before its end")

        await self._several(2, read, chance)


def words(prompt: str, tokens: int) -> str:
    """Return the stand-in's answer to a prompt; every prompt has a different one."""
    return FakeChat({"messages": [{"role": "user", "content": prompt}]}, "", "").text(0, tokens)


def streamed(body: bytes) -> str:
    rows = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for row in rows for choice in row.get("choices", ()))


def is_answer(answer: Any, prompt: str, tokens: int) -> bool:
    """Return whether this is the whole answer to that prompt; the engine may lie about the number of tokens."""
    billed = answer["usage"]["completion_tokens"]
    return answer["choices"][0]["message"]["content"] == words(prompt, tokens) and billed in (
        tokens,
        tokens + EXTRA_USAGE_TOKENS,
    )


def _form(content: str) -> bytes:
    parts = [
        '--chaos\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch',
        f'--chaos\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n{content}',
        "--chaos--\r\n",
    ]
    return "\r\n".join(parts).encode()
