"""Reads heads, and remembers those that come again: most clients and engines send the same head again and again.

Between two requests of one SDK, only the body's length differs. So a head is looked up by its bytes before and after that
number, and code that derives something from a head (a route, the engine's request, the client's response) keeps it in the
head's `notes`, for all requests that look alike.

Others put an id or the time into each head. So a head is kept when it comes for the second time, and nothing is noted for one
that is not kept.
"""

from __future__ import annotations

from typing import Final

from hangup.gateway.http.head import RequestHead, ResponseHead

_HEADS_MAX: Final = 2048  # of each kind, so that 1,000 tenants with keys of their own fit; then all are forgotten
_HEAD_BYTES_MAX: Final = 2048  # longer ones are not kept
_SEEN_MAX: Final = 4096  # heads that came once, by their hashes
_LENGTH_NAMES = (b"\r\ncontent-length: ", b"\r\nContent-Length: ")

_Key = tuple[bytes, bytes]  # the head before and after the body's length
_requests: dict[_Key, RequestHead] = {}
_responses: dict[_Key, ResponseHead] = {}
_seen: set[int] = set()


def read_request_head(data: bytes, *, count_max: int, url_bytes_max: int) -> RequestHead:
    """Parse a request's head, including the blank line; raise `WireError` with the status to refuse it with."""
    key, length = _split(data)
    known = _requests.get(key)
    if known is not None and length is not None and length.isdigit() and len(length) < 19:
        allowed = len(known.headers) <= count_max and len(known.target) <= url_bytes_max
        if allowed:
            return known.again(int(length))
    head = RequestHead(data, count_max=count_max, url_bytes_max=url_bytes_max)
    if length and _comes_again(key, data):
        if len(_requests) >= _HEADS_MAX:
            _requests.clear()
        _requests[key] = head
        head.notes = {}
    return head


def read_response_head(data: bytes) -> ResponseHead:
    """Parse a response's head, including the blank line; raise `WireError` if that is impossible."""
    key, length = _split(data)
    known = _responses.get(key)
    if known is not None:
        if length is None:
            return known.again(None)
        if length.isdigit() and len(length) < 19:
            return known.again(int(length))
    head = ResponseHead(data)
    # A length in an unusual spelling was not split off, so it must not be forgotten.
    if (length is not None or head.content_length is None) and _comes_again(key, data):
        if len(_responses) >= _HEADS_MAX:
            _responses.clear()
        _responses[key] = head
        head.notes = {}
    return head


def _comes_again(key: _Key, data: bytes) -> bool:
    """Return whether such a head came before; if not, remember that it came."""
    mark = hash(key)
    if mark in _seen:
        return len(data) <= _HEAD_BYTES_MAX
    if len(_seen) >= _SEEN_MAX:
        _seen.clear()
    _seen.add(mark)
    return False


def _split(data: bytes) -> tuple[_Key, bytes | None]:
    """Return the head before and after the body's length, and the length; without one, all of it comes before."""
    for name in _LENGTH_NAMES:
        at = data.find(name)
        if at >= 0:
            at += len(name)
            end = data.find(b"\r\n", at)
            return (data[:at], data[end:]), data[at:end]
    return (data, b""), None
