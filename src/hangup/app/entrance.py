"""What a request's head says: who asks, under which id, how long they wait. Nothing of the body is read before this."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Container, Iterable

from hangup.apis.routes import Route
from hangup.config import TenantSettings
from hangup.core import reasons
from hangup.errors import Refusal
from hangup.wire.head import RequestHead

ANONYMOUS = "default"  # the tenant of everyone when no keys are configured
_DIGITS = 24
_CALL_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_SECONDS = re.compile(rb"[0-9]{1,7}(?:\.[0-9]{1,9})?")


class Keys:
    """The tenants' API keys, by their digests."""

    def __init__(self, tenants: Iterable[TenantSettings]) -> None:
        self._tenants = {digest: tenant for tenant in tenants for digest in tenant.key_sha256}

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def tenant_of(self, head: RequestHead) -> str:
        if not self._tenants:
            return ANONYMOUS
        key = head.fields.get(b"x-api-key", b"")
        scheme, _, token = head.fields.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            key = token.strip()
        digest = hashlib.sha256(key).hexdigest()
        tenant = self._tenants.get(digest)
        # The look-up is by digest, so its timing tells nothing of the key; the comparison is for good measure.
        if not key or tenant is None or not any(hmac.compare_digest(digest, d) for d in tenant.key_sha256):
            raise Refusal(reasons.UNAUTHORIZED)
        return tenant.name


class CallIds:
    """Ids of ours: fixed in length and not to be guessed; the randomness is drawn for many at a time."""

    def __init__(self) -> None:
        self._random: list[str] = []

    def new(self) -> str:
        if not self._random:
            digits = secrets.token_hex(_DIGITS // 2 * 256)
            self._random = [digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS)]
        return "hu-" + self._random.pop()

    def of(self, head: RequestHead | None, in_use: Container[str]) -> str:
        """The client's own id if it is well-formed and not in use, else one of ours."""
        given = head.fields.get(b"x-request-id") if head is not None else None
        if given is not None and _CALL_ID.fullmatch(given):
            return unused(given.decode("ascii"), in_use)
        return self.new()


def unused(id: str, in_use: Container[str]) -> str:
    """No two live calls have one id, whoever chose it."""
    return id if id not in in_use else f"{id[:100]}-{secrets.token_hex(6)}"


def check_route(route: Route | None, head: RequestHead) -> Route:
    """The route that takes such a request."""
    if route is None:
        raise Refusal(reasons.NOT_FOUND, f"There is no {head.path[:200]} here.")
    if head.method not in route.methods:
        raise Refusal(reasons.METHOD)
    if b"origin" in head.fields and head.method == "POST" and not _is_json(head):
        # Browsers send such a request to any address, ours included, without asking first.
        raise Refusal(reasons.MEDIA_TYPE)
    return route


def own_deadline(head: RequestHead) -> float:
    """How long the client says it will wait for the whole answer."""
    given = head.fields.get(b"x-request-timeout")
    if given is None:
        return math.inf
    if not _SECONDS.fullmatch(given):
        raise Refusal(reasons.BAD_DEADLINE)
    return float(given)


def sdk_read_timeout(head: RequestHead) -> float:
    """The read timeout of the official SDKs, which send it unasked: nonsense in it is ignored."""
    given = head.fields.get(b"x-stainless-read-timeout")
    return float(given) if given is not None and _SECONDS.fullmatch(given) else math.inf


def _is_json(head: RequestHead) -> bool:
    return head.fields.get(b"content-type", b"").partition(b";")[0].strip().lower() == b"application/json"
