"""Decodes message bodies by their framing: chunked, counted, or until the connection closes.

A decoder takes bytes from a socket and returns the payload in them. `done` says that the message is complete, and `rest` holds
the bytes behind it. One strict chunk decoder serves clients and engines.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from hangup.errors import WireError

# Limits a size line with its extensions, or one trailer line. Both are dropped, so there is no use for long ones.
LINE_BYTES_MAX: Final = 1024
TRAILER_BYTES_MAX: Final = 8 * 1024
LAST_CHUNK: Final = b"0\r\n\r\n"

_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# Strictly RFC 9112, except that it tolerates blanks within extensions and this does not: parsers differ about those.
_EXTENSION: Final = re.compile(rb'[ \t]*(?:;%b(?:=(?:%b|"[\t\x20\x21\x23-\x5b\x5d-\x7e]*"))?)+' % (_TOKEN, _TOKEN))
_TRAILER: Final = re.compile(_TOKEN + rb":[\t\x20-\x7e\x80-\xff]*")

# Size lines that the relay can look up instead of parsing. The table is fixed: no peer can fill or corrupt it.
_KNOWN_SIZES_MAX: Final = 4096
KNOWN_SIZES: dict[bytes, int] = {form % size: size for form in (b"%x", b"%X") for size in range(_KNOWN_SIZES_MAX)}


class BodyDecoder(Protocol):
    done: bool
    rest: bytes

    def feed(self, data: bytes) -> bytes: ...


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def chunk_size(line: bytes) -> int:
    """Return the number in a chunk's size line, which may have hex digits alone, then at most an extension."""
    size = KNOWN_SIZES.get(line)
    if size is None:
        digits = _SIZE.match(line)
        if digits is None or (digits.end() != len(line) and not _EXTENSION.fullmatch(line, digits.end())):
            raise WireError("invalid chunk size")
        size = int(digits[0], 16)
    return size


def _take_whole_chunks(data: bytes, payload: list[bytes]) -> int:
    """Append to `payload` the content of the complete chunks at the start of `data`; return where they end. This is the common
    case, without a state machine."""
    at, end = 0, len(data)
    while True:
        line_end = data.find(b"\r\n", at, at + 18)
        size = KNOWN_SIZES.get(data[at:line_end]) if line_end >= 0 else None
        if not size:
            return at
        start, behind = line_end + 2, line_end + 2 + size
        if behind + 2 > end or not data.startswith(b"\r\n", behind):
            return at
        payload.append(data[start:behind])
        at = behind + 2
        if at == end:
            return at


def is_whole_chunks(data: bytes) -> bool:
    """Return True if `data` is nothing but complete chunks of usual sizes. False decides nothing, it only means the slow path.

    The caller must have checked that `data` ends in CRLF.
    """
    at, end = 0, len(data)
    while True:
        line_end = data.find(b"\r\n", at, at + 18)
        size = KNOWN_SIZES.get(data[at:line_end])
        if not size:
            return False
        at = line_end + size + 4
        if at >= end:
            return at == end
        if not data.startswith(b"\r\n", at - 2):
            return False


class Chunked:
    """Decodes the chunked coding. Extensions and trailers are bounded and dropped."""

    __slots__ = ("_kept", "_remaining", "_state", "_trailer_bytes", "done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""
        self._state = "size"
        self._remaining = 0
        self._kept = b""  # the beginning of an incomplete line
        self._trailer_bytes = 0

    @property
    def between_chunks(self) -> bool:
        """True if no part of a chunk has been read yet: raw bytes from here on are whole chunks, if they parse as such."""
        return self._state == "size" and not self._kept

    def feed(self, data: bytes) -> bytes:
        if self._kept:
            data, self._kept = self._kept + data, b""
        payload: list[bytes] = []
        at, end = 0, len(data)
        if self._state == "size":
            at = _take_whole_chunks(data, payload)
            if at + len(LAST_CHUNK) == end and data.endswith(LAST_CHUNK):  # the usual end
                at, self.done = end, True
        while at < end and not self.done:
            if self._state == "data":
                piece = data[at : at + self._remaining]
                payload.append(piece)
                at += len(piece)
                self._remaining -= len(piece)
                if not self._remaining:
                    self._state = "after"
                continue
            line, at = self._line(data, at)
            if line is not None:
                self._take_line(line)
        if self.done:
            self.rest = data[at:]
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _line(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        end = data.find(b"\r\n", at, at + LINE_BYTES_MAX + 2)
        if end < 0:
            kept = data[at:]
            if len(kept) > LINE_BYTES_MAX or b"\n" in kept or b"\r" in kept[:-1]:
                raise WireError("invalid or too long line in a chunked body")
            self._kept = kept
            return None, len(data)
        return data[at:end], end + 2

    def _take_line(self, line: bytes) -> None:
        if self._state == "after":
            if line:
                raise WireError("a chunk is longer than its declared size")
            self._state = "size"
        elif self._state == "size":
            self._remaining = chunk_size(line)
            self._state = "data" if self._remaining else "trailer"
        elif line:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > TRAILER_BYTES_MAX:
                raise WireError("too many trailers", 431)
            if not _TRAILER.fullmatch(line):
                raise WireError("invalid trailer")
        else:
            self.done = True


class Counted:
    """Decodes a body of Content-Length bytes."""

    __slots__ = ("_remaining", "done", "rest")

    def __init__(self, length: int) -> None:
        self._remaining = length
        self.done = length == 0
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        if len(data) > self._remaining:
            data, self.rest = data[: self._remaining], data[self._remaining :]
        self._remaining -= len(data)
        self.done = not self._remaining
        return data


class UntilClose:
    """Decodes a body that ends with the connection: the owner must set `done` then."""

    __slots__ = ("done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        return data
