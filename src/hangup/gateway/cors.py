"""CORS: lets web pages of other sites call, if the engine allows it.

Preflights are passed on to an engine as questions. The gateway remembers the origins that an engine allowed, so that their
pages can read its own answers, too: without the header a page sees a refusal only as a "network error", and loses its
`Retry-After`.
"""

from __future__ import annotations

from collections import OrderedDict

from hangup.gateway.http.head import Headers, RequestHead, ResponseHead

_ALLOWED = b"access-control-allow-origin"
_ORIGINS_MAX = 256
_READABLE = b"retry-after, x-hangup-reason, x-request-id, x-should-retry"


def is_preflight(head: RequestHead) -> bool:
    """Return whether a browser asks if a page of another site may send its request."""
    return head.method == "OPTIONS" and b"origin" in head.fields and b"access-control-request-method" in head.fields


class Origins:
    """The origins that an engine has allowed, newest last."""

    def __init__(self) -> None:
        self._allowed: OrderedDict[bytes, bytes] = OrderedDict()

    def learn(self, origin: bytes, answer: ResponseHead) -> None:
        """Note an engine's answer to a preflight."""
        allowed = answer.fields.get(_ALLOWED, b"")
        self._allowed.pop(origin, None)
        if 200 <= answer.status < 300 and allowed in (b"*", origin):
            self._allowed[origin] = allowed
            if len(self._allowed) > _ORIGINS_MAX:
                self._allowed.popitem(last=False)

    def headers(self, head: RequestHead) -> Headers:
        """Return the headers with which the request's page can read the gateway's own answer."""
        origin = head.fields.get(b"origin") if self._allowed else None
        allowed = self._allowed.get(origin) if origin is not None else None
        if allowed is None:
            return []
        return [(_ALLOWED, allowed), (b"access-control-expose-headers", _READABLE), (b"vary", b"origin")]
