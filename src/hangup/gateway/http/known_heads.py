"""Reads heads, and remembers those it has read: a client or an engine sends the same head again and again.

Between two requests of one SDK, only the body's length differs. So a head is looked up by its bytes before and after that
number, and code that derives something from a head (a route, the engine's request, the client's response) keeps it in the
head's `notes`, for all requests that look alike. Heads that never repeat are not kept.
"""

from __future__ import annotations

from hangup.gateway.http.head import RequestHead, ResponseHead

_HEADS_MAX = 512  # of each kind; then all are forgotten, because it is unknown which will come again
_HEAD_BYTES_MAX = 2048  # longer ones are not kept
_NEVER_AGAIN = frozenset([b"x-request-id", b"traceparent", b"idempotency-key", b"sec-websocket-key"])
_LENGTH_NAMES = (b"\r\ncontent-length: ", b"\r\nContent-Length: ")

_requests: dict[tuple[bytes, bytes], RequestHead] = {}
_responses: dict[tuple[bytes, bytes], ResponseHead] = {}


def read_request_head(data: bytes, *, count_max: int, url_bytes_max: int) -> RequestHead:
    """Parse a request's head, including the blank line; raise `WireError` with the status to refuse it with."""
    before, length, after = _split(data)
    if length.isdigit() and len(length) < 19:
        known = _requests.get((before, after))
        if known is not None and len(known.headers) <= count_max and len(known.target) <= url_bytes_max:
            return known.again(int(length))
    head = RequestHead(data, count_max=count_max, url_bytes_max=url_bytes_max)
    if length and len(data) <= _HEAD_BYTES_MAX and head.fields.keys().isdisjoint(_NEVER_AGAIN):
        if len(_requests) >= _HEADS_MAX:
            _requests.clear()
        _requests[before, after] = head
    return head


def read_response_head(data: bytes) -> ResponseHead:
    """Parse a response's head, including the blank line; raise `WireError` if that is impossible."""
    before, length, after = _split(data)
    if not after or (length.isdigit() and len(length) < 19):
        known = _responses.get((before, after))
        if known is not None:
            return known.again(int(length) if after else None)
    head = ResponseHead(data)
    # A length in an unusual spelling was not split off, so it must not be forgotten.
    is_split = bool(after) or head.content_length is None
    if is_split and len(data) <= _HEAD_BYTES_MAX and head.fields.keys().isdisjoint(_NEVER_AGAIN):
        if len(_responses) >= _HEADS_MAX:
            _responses.clear()
        _responses[before, after] = head
    return head


def _split(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the head before the body's length, the length, and the head after it; without a length, all of it comes before."""
    for name in _LENGTH_NAMES:
        at = data.find(name)
        if at >= 0:
            at += len(name)
            end = data.find(b"\r\n", at)
            return data[:at], data[at:end], data[end:]
    return data, b"", b""
