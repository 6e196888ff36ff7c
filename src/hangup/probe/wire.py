"""HTTP/1.1 as bytes, the little that a probe needs: build a request, read an answer. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from hangup.errors import WireError

HEAD_BYTES_MAX = 64 * 1024


def request_head(method: str, target: str, authority: str, headers: Mapping[str, str], length: int | None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if length is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


class AnswerParser:
    """Reads one answer, fed with bytes cut anywhere."""

    def __init__(self) -> None:
        self.status = 0  # until the head has arrived
        self.headers: dict[str, str] = {}
        self.done = False
        self.rest = b""  # bytes behind the answer
        self._buffer = b""
        self._chunked = False
        self._left: int | None = None  # bytes of the body, or of the current chunk, that are still to come; None: until close
        self._after_chunk = False
        self._trailers = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes and return those of the body; raise `WireError` if this is not HTTP."""
        if self.done:
            self.rest += data
            return b""
        self._buffer += data
        while not self.status:
            if not self._read_head():
                return b""
        return self._read_chunks() if self._chunked else self._read_plain()

    def close(self) -> bool:
        """Tell that the peer closed; return whether the answer is complete."""
        if self.status and not self._chunked and self._left is None:
            self.done = True
        return self.done

    @property
    def keeps_alive(self) -> bool:
        return self.done and not self.rest and self.headers.get("connection", "").lower() != "close" and self._left is not None

    def _read_head(self) -> bool:
        """Read one head, if it has arrived; one of an interim answer (100, 103) is skipped."""
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            if len(self._buffer) > HEAD_BYTES_MAX or not b"HTTP/1.".startswith(self._buffer[:7]):
                raise WireError("the answer is not HTTP/1.1")
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, tail = first.partition(" ")
        code = tail[:3]
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit() and code >= "100"):
            raise WireError("the answer is not HTTP/1.1")
        self._buffer = rest
        if code.startswith("1"):
            return bool(rest)
        self.status = int(code)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length", "")
        if self._chunked or self.status in (204, 304):
            self._left = 0
        elif length:
            if not (length.isascii() and length.isdigit()):
                raise WireError("the answer has a bad Content-Length")
            self._left = int(length)
        return True

    def _read_plain(self) -> bytes:
        if self._left is None:
            body, self._buffer = self._buffer, b""
            return body
        body, rest = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(body)
        self._buffer = b""
        if not self._left:
            self.done, self.rest = True, rest
        return body

    def _read_chunks(self) -> bytes:
        body = b""
        while True:
            if self._left:
                part = self._buffer[: self._left]
                body += part
                self._buffer = self._buffer[len(part) :]
                self._left -= len(part)
                if self._left:
                    return body
                self._after_chunk = True
            line, end, rest = self._buffer.partition(b"\r\n")
            if not end:
                if len(self._buffer) > HEAD_BYTES_MAX:
                    raise WireError("a chunk's size is too long")
                return body
            self._buffer = rest
            if self._trailers:
                if not line:
                    self.done, self.rest, self._buffer = True, rest, b""
                    return body
            elif self._after_chunk:
                if line:
                    raise WireError("a chunk is longer than its size")
                self._after_chunk = False
            else:
                self._left = _chunk_size(line)
                self._trailers = not self._left


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 12 or not all(c in b"0123456789abcdefABCDEF" for c in digits):
        raise WireError("a chunk has no size")
    return int(digits, 16)


class LineSplitter:
    """Splits a body into lines: events of SSE and of newline-delimited JSON are lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.rstrip(b"\r") for line in lines]

    def end(self) -> bytes:
        """Return what stands behind the last line's end."""
        rest, self._rest = self._rest, b""
        return rest
