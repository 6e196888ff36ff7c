"""Pages of other sites (CORS): whether they may call is the engine's to say, where it has an opinion.

Their preflights are passed to an engine as questions. What it allowed is remembered, so that such a page can read our own
answers, too: without the header a refusal is a mere "network error" to it, and its `Retry-After` is lost.
"""

from __future__ import annotations

from collections import OrderedDict

from hangup.gateway.http.head import Headers, RequestHead, ResponseHead

_ALLOWED = b"access-control-allow-origin"
_ORIGINS_MAX = 256
_READABLE = b"retry-after, x-hangup-reason, x-request-id, x-should-retry"


def is_preflight(head: RequestHead) -> bool:
    """A browser asks whether a page of another site may send what it is about to send."""
    return head.method == "OPTIONS" and b"origin" in head.fields and b"access-control-request-method" in head.fields


class Origins:
    """Those that an engine has allowed, the newest last."""

    def __init__(self) -> None:
        self._allowed: OrderedDict[bytes, bytes] = OrderedDict()

    def learn(self, origin: bytes, answer: ResponseHead) -> None:
        """What an engine said to a preflight."""
        allowed = answer.fields.get(_ALLOWED, b"")
        self._allowed.pop(origin, None)
        if 200 <= answer.status < 300 and allowed in (b"*", origin):
            self._allowed[origin] = allowed
            if len(self._allowed) > _ORIGINS_MAX:
                self._allowed.popitem(last=False)

    def headers(self, head: RequestHead) -> Headers:
        """What lets the page of a request read an answer of ours."""
        origin = head.fields.get(b"origin") if self._allowed else None
        allowed = self._allowed.get(origin) if origin is not None else None
        if allowed is None:
            return []
        return [(_ALLOWED, allowed), (b"access-control-expose-headers", _READABLE), (b"vary", b"origin")]
