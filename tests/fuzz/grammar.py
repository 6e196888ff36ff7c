"""Generates the cases: mostly right, somewhere wrong. A case depends only on its number."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"


def kept(kind: str) -> list[bytes]:
    """Return inputs that once found a bug, or well might; the file extension says what they are."""
    return [path.read_bytes() for path in sorted(CORPUS.glob(f"*.{kind}"))]


KEPT = {kind: kept(kind) for kind in ("request", "answer", "events", "configuration")}

WORDS = [
    "hello",
    "wörld",
    "a" * 300,
    "",
    "\x00",
    "\ud83d\ude00",
    '"',
    "\\",
    "</script>",
    "%s%n",
    "[DONE]",
    "data: x\n\n",
    "\r\n\r\n",
]
NUMBERS = [0, 1, -1, 2, 7, 1000, 2**31, 2**63, 2**64 - 1, -(2**63), 10**30, 1.5, -0.0, 1e308, 1e-308]
FIELDS = [
    *["model", "messages", "prompt", "input", "stream", "max_tokens", "max_completion_tokens", "n", "best_of", "stop", "tools"],
    *["stream_options", "options", "num_predict", "inputs", "parameters", "sampling_params", "background", "store", "metadata"],
    *["response_format", "logprobs", "user", "prompt_embeds", "echo", "n_predict", "system", "include_usage", "min_tokens"],
]
PATHS = [
    *[
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/models",
        "/completion",
    ],
    *["/generate", "/generate_stream", "/api/chat", "/api/generate", "/v1/files", "/v1/batches", "/v1/jobs", "/v1/responses/x"],
    *["/v1/messages/batches", "/v1/jobs/job_x/events", "/v1/files/file-x/content", "/v1/models/a%2Fb", "/v1/batches/x/cancel"],
    *[
        "/nowhere",
        "/",
        "/v1/../metrics",
        "/v1/%2e%2e/x",
        "//",
        "/v1/chat/completions?a=%00&b",
        "/v1/jobs?limit=%C2%B2",
        "/health",
    ],
]
HEADERS = [
    *[b"Accept: */*", b"X-Request-Timeout: 1", b"X-Request-Timeout: \xff", b"Prefer: respond-async", b"X-Hangup-Lease: 5"],
    *[b"Expect: 100-continue", b"Connection: close", b"Connection: keep-alive, x-a", b"X-A: b", b"Authorization: Bearer x"],
    *[
        b"traceparent: 00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01",
        b"Upgrade: websocket",
        b"Origin: http://evil",
        b"Cookie: a=b",
    ],
    *[b"X-Stainless-Read-Timeout: 3", b"X-Stainless-Retry-Count: 2", b"Last-Event-ID: 99999999999999999999", b"TE: trailers"],
]
SPLICES = [
    *[b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b",", b";", b"\xff", b"\x80", b"0", b"9" * 20, b"chunked", b"{", b"["],
    *[b"}", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"NaN", b"1e999", b"[" * 300, b'{"a":' * 260, b"\r\n\r\n", b"--"],
    *[
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"0\r\n\r\n",
        b"data: ",
        b"\n\n",
        b"[DONE]",
        b"event: ping\n",
    ],
]


class Dice(random.Random):
    def maybe(self, chance: float) -> bool:
        return self.random() < chance

    def mutilated(self, data: bytes, most: int = 4) -> bytes:
        for _ in range(self.randint(1, most)):
            at = self.randint(0, len(data))
            match self.randint(0, 5):
                case 0:
                    data = data[:at] + self.choice(SPLICES) + data[at:]
                case 1:
                    data = data[:at] + data[at + self.randint(1, 8) :]
                case 2:
                    data = data[:at] + bytes([self.randint(0, 255)]) + data[at + 1 :]
                case 3:
                    end = self.randint(at, min(at + 200, len(data)))
                    data = data[:at] + data[at:end] * self.randint(2, 3) + data[end:]
                case 4:
                    data = data[:at]
                case 5:
                    other = self.randint(0, len(data))
                    data = data[:at] + data[other : other + 40] + data[at:]
        return data

    def pieces(self, data: bytes) -> list[bytes]:
        """Split data as a socket may deliver it."""
        if len(data) < 2 or self.maybe(0.4):
            return [data]
        # Cut anywhere, or at line ends, where parsers must take care.
        places = [at for at in range(1, len(data)) if data[at - 1] in b"\r\n"] if self.maybe(0.5) else []
        cuts = sorted({self.choice(places) if places else self.randint(1, len(data) - 1) for _ in range(self.randint(1, 6))})
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def kept(self, kind: str) -> bytes | None:
        """Return something from the corpus now and then, usually changed."""
        if not self.maybe(0.1):
            return None
        data = self.choice(KEPT[kind])
        return self.mutilated(data) if self.maybe(0.7) else data

    # JSON

    def value(self, depth: int = 0) -> Any:
        kind = self.randint(0, 7 if depth < 4 else 4)
        if kind <= 1:
            return self.choice(WORDS)
        if kind == 2:
            return self.choice(NUMBERS)
        if kind <= 4:
            return self.choice([None, True, False])
        if kind == 5:
            return [self.value(depth + 1) for _ in range(self.randint(0, 4))]
        return {self.choice([*FIELDS, *WORDS]): self.value(depth + 1) for _ in range(self.randint(0, 5))}

    def chat(self, number: int) -> dict[str, Any]:
        """Return a good call that names its number."""
        body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": f"case-{number}."}]}
        if self.maybe(0.5):
            body["stream"] = True
        if self.maybe(0.5):
            body["max_tokens"] = self.randint(1, 64)
        if self.maybe(0.2):
            body["n"] = self.randint(1, 3)
        return body

    def good_call(self, number: int) -> tuple[str, dict[str, Any]]:
        """Return a call to any API, with its number in the prompt."""
        body, word = self.chat(number), f"case-{number}."
        rest = {name: body[name] for name in ("model", "stream", "max_tokens", "n") if name in body}
        small = {name: value for name, value in rest.items() if name != "n"}
        return self.choice(
            [
                ("/v1/chat/completions", body),
                ("/v1/chat/completions", body),
                ("/v1/completions", {**rest, "prompt": word}),
                ("/v1/messages", {"max_tokens": 9, **small, "messages": body["messages"]}),
                ("/v1/responses", {"model": "m", "stream": rest.get("stream", False), "input": word}),
                ("/api/chat", {"model": "m", "messages": body["messages"], "stream": self.maybe(0.5)}),
                ("/api/generate", {"model": "m", "prompt": word}),
                ("/generate", {"inputs": word, "parameters": {}}),
                ("/generate_stream", {"inputs": word}),
                ("/generate", {"text": word, "stream": self.maybe(0.5)}),
                ("/completion", {"prompt": word, "stream": self.maybe(0.5)}),
            ]
        )

    def odd_body(self, number: int) -> bytes:
        call = self.chat(number)
        for _ in range(self.randint(0, 3)):
            call[self.choice(FIELDS)] = self.value()
        body = json.dumps(call, ensure_ascii=self.maybe(0.5)).encode("utf-8", "surrogatepass")
        if self.maybe(0.03):
            body = b'{"messages":[],"x":' + b"[" * 2000 + b"]" * 2000 + b"}"
        return self.mutilated(body) if self.maybe(0.4) else body

    def batch_lines(self, number: int) -> bytes:
        rows = []
        for n in range(self.randint(0, 4)):
            row = {"custom_id": f"c{n}", "method": "POST", "url": self.choice(PATHS), "body": self.chat(number)}
            if self.maybe(0.3):
                row[self.choice(list(row))] = self.value()
            rows.append(json.dumps(row).encode())
        data = b"\n".join(rows)
        return self.mutilated(data) if self.maybe(0.3) else data

    def form(self, number: int) -> tuple[bytes, bytes]:
        """Return a multipart body and its content type."""
        boundary = self.choice([b"b", b"-" * 70, b"x" * 300, b"a b", b"", b"\xff", b"--b"])
        name = self.choice([b"f.jsonl", b"", b'q"\r\nx: y', b"../../f", b"\x00\x1b[2J", "é".encode()])
        parts = [
            b'content-disposition: form-data; name="purpose"\r\n\r\n' + self.choice([b"batch", b"", b"user_data", b"\xff"]),
            b'content-disposition: form-data; name="file"; filename="' + name + b'"\r\n\r\n' + self.batch_lines(number),
        ]
        if self.maybe(0.2):
            parts.append(b'content-disposition: form-data; name="expires_after[seconds]"\r\n\r\n' + self.choice(SPLICES))
        self.shuffle(parts)
        body = b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"
        if self.maybe(0.3):
            body = self.mutilated(body)
        return body, b"multipart/form-data; boundary=" + boundary

    # Requests

    def request(self, number: int) -> bytes:
        """Return any request at all."""
        if (kept := self.kept("request")) is not None:
            return kept
        path = self.choice(PATHS)
        method = self.choice(["POST", "POST", "POST", "GET", "DELETE", "HEAD", "OPTIONS", "BREW", "PUT"])
        kind, body = b"application/json", b""
        if method in ("POST", "PUT", "BREW"):
            if path == "/v1/files" or self.maybe(0.1):
                body, kind = self.form(number)
            else:
                body = self.odd_body(number)
        lines = [b"%b %b HTTP/1.%d" % (method.encode(), path.encode(), self.choice([1, 1, 1, 0])), b"Host: localhost"]
        lines += [b"X-Request-Id: fz-%d" % number, b"Content-Type: " + kind]
        lines += self.sample(HEADERS, self.randint(0, 3))
        framing = self.randint(0, 9)
        if framing < 6 and (body or self.maybe(0.5)):
            lines.append(b"Content-Length: %d" % len(body))
        elif framing < 9 and body:
            lines.append(b"Transfer-Encoding: chunked")
            body = self.chunked(body)
        elif body:
            lines.append(self.choice([b"Content-Length: %d" % self.randint(0, 9), b"Transfer-Encoding: gzip, chunked"]))
        data = b"\r\n".join(lines) + b"\r\n\r\n" + body
        return self.mutilated(data) if self.maybe(0.3) else data

    def chunked(self, body: bytes) -> bytes:
        """Encode a body in chunks, cut as a sender may cut them."""
        extension = self.choice([b"", b"", b"", b";a=b", b';q="x y"'])
        form = self.choice([b"%x", b"%X", b"%04x"])
        data = b"".join(form % len(piece) + extension + b"\r\n" + piece + b"\r\n" for piece in self.pieces(body) if piece)
        trailers = self.choice([b"", b"", b"x-t: 1\r\n"])
        data += b"0\r\n" + trailers + b"\r\n"
        return self.mutilated(data, 1) if self.maybe(0.05) else data

    # Answers

    def events(self, number: int) -> bytes:
        """Return a stream of chat events, more or less."""
        if (kept := self.kept("events")) is not None:
            return kept
        rows: list[bytes] = []
        shape = self.choice(["chat", "chat", "completion", "anthropic", "responses", "ollama", "tgi", "llamacpp", "sglang"])
        for n in range(self.randint(0, 12)):
            event: Any = self.event(shape, f"odd-{number} " if n % 2 else self.choice(WORDS), n)
            if self.maybe(0.2):
                event["usage"] = self.choice(
                    [None, {"completion_tokens": self.choice(NUMBERS), "prompt_tokens": self.value()}, 5]
                )
            if self.maybe(0.15):
                event = self.value()
            if self.maybe(0.03):
                rows.append(b"data: " + b"[" * 900 + b"]" * 900)
            text = json.dumps(event).encode("utf-8", "surrogatepass")
            end = self.choice([b"\n\n", b"\n\n", b"\n\n", b"\r\n\r\n", b"\n"])
            rows.append(self.choice([b"data: ", b"data: ", b"data:", b"event: x\ndata: ", b": "]) + text + end)
        if self.maybe(0.7):
            rows.append(b"data: [DONE]\n\n")
        data = b"".join(rows)
        return self.mutilated(data) if self.maybe(0.3) else data

    def event(self, shape: str, text: str, n: int) -> dict[str, Any]:
        """Return the n-th event of a stream of that API."""
        finish = self.choice([None, None, None, None, "stop", "length", "abort", 5])
        index = self.choice([0, 0, 0, 0, 1, -1, None])
        base: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        match shape:
            case "chat":
                call = {"index": index, "id": "t", "function": {"name": "f", "arguments": text}}
                delta = self.choice([{"content": text}, {"content": text}, {"role": "assistant"}, {"tool_calls": [call]}, {}])
                return {**base, "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}
            case "completion":
                return {**base, "choices": [{"index": index, "text": text, "logprobs": None, "finish_reason": finish}]}
            case "anthropic":
                block = {
                    "type": self.choice(["text", "tool_use", "thinking", "x"]),
                    "text": "",
                    "id": "t",
                    "name": "f",
                    "input": {},
                }
                return self.choice(
                    [
                        {"type": "message_start", "message": {"id": "m", "content": [], "usage": {"input_tokens": 1}}},
                        {"type": "content_block_start", "index": index, "content_block": block},
                        {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}},
                        {
                            "type": "content_block_delta",
                            "index": index,
                            "delta": {"type": "input_json_delta", "partial_json": text},
                        },
                        {"type": "content_block_stop", "index": index},
                        {
                            "type": "message_delta",
                            "delta": {"stop_reason": finish},
                            "usage": {"output_tokens": self.choice(NUMBERS)},
                        },
                        {"type": self.choice(["message_stop", "ping", "error"])},
                    ]
                )
            case "responses":
                part = {"item_id": "i", "output_index": index, "content_index": 0}
                response: dict[str, Any] = {
                    "id": "r",
                    "status": self.choice(["completed", "failed", None, 5]),
                    "output": self.choice([[], None, [{}]]),
                }
                return self.choice(
                    [
                        {"type": "response.created", "response": response, "sequence_number": n},
                        {"type": "response.output_text.delta", "delta": text, **part},
                        {"type": "response.function_call_arguments.delta", "delta": text, **part},
                        {"type": self.choice(["response.completed", "response.failed", "error"]), "response": response},
                    ]
                )
            case "ollama":
                return {
                    "model": "m",
                    "message": {"role": "assistant", "content": text},
                    "response": text,
                    "done": self.maybe(0.1),
                }
            case "tgi":
                whole = text if self.maybe(0.1) else None
                return {"token": {"id": n, "text": text, "special": False}, "generated_text": whole, "details": None}
            case "sglang":
                return {"text": text * n, "meta_info": {"finish_reason": finish, "completion_tokens": n}, "index": index}
            case _:
                return {"content": text, "stop": self.maybe(0.1), "tokens_predicted": n, "timings": self.value()}

    def answer(self, number: int) -> bytes:
        """Return what an engine may send, head and body."""
        if (kept := self.kept("answer")) is not None:
            return kept
        # Not 429 or 503: the gateway pauses an engine that answers so for a second, and the clients that check would wait in
        # vain.
        status = self.choice([200, 200, 200, 200, 204, 205, 301, 304, 400, 404, 422, 500, 501, 502, 599, 999, 100, 101])
        stream = self.maybe(0.7)
        body = self.events(number) if stream else json.dumps(self.value()).encode("utf-8", "surrogatepass")
        kind = (
            b"text/event-stream" if stream else self.choice([b"application/json", b"text/html", b"", b"application/x-ndjson"])
        )
        lines = [b"HTTP/1.%d %d OK" % (self.choice([1, 1, 1, 0]), status), b"content-type: " + kind, b"x-request-id: engines"]
        match self.randint(0, 5):
            case 0 | 1 | 2:
                lines.append(b"transfer-encoding: chunked")
                body = self.chunked(body)
            case 3 | 4:
                lines.append(b"content-length: %d" % len(body))
            case 5 if self.maybe(0.5):
                lines.append(b"content-length: %d" % self.randint(0, 2 * len(body) + 1))
        lines += self.sample([b"connection: close", b"x-hangup-reason: fin", b"set-cookie: a", b"server: x", b"alt-svc: y"], 2)
        if self.maybe(0.1):
            lines.append(self.choice([b"content-encoding: gzip", b"connection: x-a", b"x-a: " + b"b" * 70000, b"trailer: x"]))
        before = self.choice([b""] * 8 + [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", b"\r\n"])
        behind = self.choice([b""] * 8 + [b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nPOISON", b"x"])
        data = before + b"\r\n".join(lines) + b"\r\n\r\n" + body + behind
        return self.mutilated(data) if self.maybe(0.25) else data

    # Configurations

    def configuration(self) -> bytes:
        if (kept := self.kept("configuration")) is not None:
            return kept
        scalars = [
            "port",
            "host",
            "slots",
            "jobs",
            "log",
            "heartbeat_s",
            "assemble",
            "half_close",
            "allowed_hosts",
            "ledger",
            "x",
        ]
        tables = ["limits", "backend", "tenant", "route", "x"]
        keys = [
            "url",
            "name",
            "engine",
            "spawn",
            "ca_file",
            "path",
            "methods",
            "key_sha256",
            "limits",
            "total_s",
            "queue_s",
            "weight",
        ]
        values = [
            *["1", "-1", "1.5", "true", '""', '"http://a:1"', "'a b'", "[]", "['GET']", "{}", "{total_s=1}", "nan", "inf"]
        ]
        values += [
            '"https://[::1"',
            "'/v1/*'",
            "1979-05-27",
            '"' + "a" * 64 + '"',
            "9" * 5000,
            "[" * 300 + "]" * 300,
            '"\\u0000"',
            "x",
        ]
        lines = [f"{self.choice(scalars)} = {self.choice(values)}" for _ in range(self.randint(0, 4))]
        for _ in range(self.randint(0, 4)):
            table = self.choice(tables)
            lines.append(f"[{table}]" if table == "limits" or self.maybe(0.1) else f"[[{table}]]")
            lines += [f"{self.choice(keys)} = {self.choice(values)}" for _ in range(self.randint(0, 4))]
        text = "\n".join(lines).encode()
        return self.mutilated(text) if self.maybe(0.3) else text
