"""Checks a request's head before any body is read: API key, host, route, ids and deadlines."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
import socket
from collections.abc import Container, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from hangup.config import RequestLimits, ServingLimits, Settings, TenantSettings
from hangup.core import reasons
from hangup.core.call import Call, CallTimeLimits
from hangup.core.reasons import Reason
from hangup.errors import Refusal
from hangup.gateway.apis.base import Api
from hangup.gateway.apis.engine_paths import HEALTH, why_not
from hangup.gateway.apis.routes import UNKNOWN, Route, Router
from hangup.gateway.cors import is_preflight
from hangup.gateway.http.head import Headers, RequestHead
from hangup.gateway.http.hosts import is_address, is_loopback

ANONYMOUS: Final = "default"  # the tenant of all clients if no keys are configured
_DIGITS: Final = 24
_AGENT_BYTES: Final = 40  # of the user-agent
_CALL_ID: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_SECONDS: Final = re.compile(rb"[0-9]{1,7}(?:\.[0-9]{1,9})?")
# The methods of HTTP (RFC 9110, and PATCH): if a route does not allow one of these the answer is 405; any other gets 501.
_METHODS: Final = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
# No public name ends in one of these, so no foreign web site can have such a name.
_PRIVATE_SUFFIXES = (".localhost", ".local", ".internal")


class IncomingRequest:
    """A request's head, and the limits and deadlines that follow from it."""

    __slots__ = (
        "api",
        "body_bytes_max",
        "body_s",
        "client_read_s",
        "client_total_s",
        "head",
        "keyed",
        "limits",
        "route",
        "time_limits",
    )

    def __init__(self, head: RequestHead, limits: ServingLimits, route: Route | None) -> None:
        self.head = head
        self.route = route
        self.api: Api = route.api if route is not None else UNKNOWN
        self.keyed = False  # True if the client's key is the gateway's: the engine must not see it
        self.client_total_s = math.inf  # how long the client waits, by its own word: for the whole answer,
        self.client_read_s = math.inf  # and for the next byte
        # By whether the answer streams to the client, and from the engine; shared by all requests with such a head.
        self.time_limits: dict[tuple[bool, bool], CallTimeLimits] = {}
        self.limits = limits
        self.body_bytes_max = limits.body_bytes_max
        self.body_s = limits.body_s

    def take_limits(self, limits: ServingLimits) -> None:
        """Apply the limits of its route and tenant."""
        self.limits = limits
        self.body_bytes_max = limits.body_bytes_max
        self.body_s = limits.body_s
        if self.api.media:
            self.body_bytes_max = max(limits.media_bytes_max, limits.body_bytes_max)
            self.body_s = limits.upload_s

    def remaining_s(self, since: float, now: float) -> float | None:
        """Return how long the client will still wait; None if it did not say."""
        patience_s = self.client_total_s if self.client_total_s < self.client_read_s else self.client_read_s
        return None if patience_s == math.inf else max(since + patience_s - now, 0.001)


class RequestPolicy:
    """Decides which requests are allowed, and under which limits. A reload replaces it completely or not at all."""

    def __init__(self, settings: Settings, *, provider: bool) -> None:
        self._provider = provider
        self.ids = CallIds()
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Apply new settings. The steps that can fail come first, so that settings are never half applied."""
        router, keys, hosts = Router(settings.route, provider=self._provider), Keys(settings.tenant), Hosts(settings)
        self.settings = settings
        self.limits: ServingLimits = settings.limits
        self.router, self._keys, self._hosts = router, keys, hosts
        self._keyed = bool(keys)  # True if clients need a key
        self._own_limits = {f"tenant {t.name}": t.limits for t in settings.tenant}
        self._own_limits |= {f"route {r.path}": r.limits for r in settings.route}
        self.limits_of = lru_cache(maxsize=4096)(self._merge_limits)
        self._decided = object()  # identifies decisions that were made under these settings

    def _merge_limits(self, route: str, tenant: str) -> ServingLimits:
        own = {**self._own_limits.get(f"route {route}", {}), **self._own_limits.get(f"tenant {tenant}", {})}
        return replace(self.settings.limits, **own) if own else self.limits

    def admit(self, request: IncomingRequest, call: Call) -> Route:
        """Set the call's tenant, limits and deadlines, and return its route; raise a `Refusal` if it is not allowed."""
        head = request.head
        decided = head.notes.get("policy")
        if decided is None or decided[0] is not self._decided:
            decided = head.note("policy", (self._decided, {}, *self._decide(request)))
        _, request.time_limits, route, call.tenant, request.keyed, total_s, read_s, limits = decided
        request.client_total_s, request.client_read_s = total_s, read_s
        if limits is not request.limits or route.api.media:
            request.take_limits(limits)
        return route

    def _decide(self, request: IncomingRequest) -> tuple[Route, str, bool, float, float, ServingLimits]:
        """Decide by the head alone, so that the decision can be reused for every request with the same head."""
        head, route, tenant, keyed = request.head, request.route, "", False
        if not self._keyed:
            self._hosts.check(head)
        if head.method != "OPTIONS" or route is None or not self._passes_preflight(route, head):  # a preflight has no key
            tenant, keyed = self._keys.tenant_of(head) if self._keyed else ANONYMOUS, self._keyed
            route = check_route(route, head)
        limits = self.limits_of(route.path, tenant or ANONYMOUS)
        return route, tenant, keyed, own_deadline(head), sdk_read_timeout(head), limits

    def _passes_preflight(self, route: Route, head: RequestHead) -> bool:
        """Return whether a browser's preflight goes to an engine. The gateway's own answers are not for other sites' pages."""
        return is_preflight(head) and self.settings.cors == "engine" and not route.api.about_jobs and route.api is not HEALTH


class Keys:
    """The tenants' API keys, by their SHA-256 digests."""

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
        # The look-up is by digest, so its timing reveals nothing about the key; the comparison is an extra precaution.
        if not key or tenant is None or not any(hmac.compare_digest(digest, d) for d in tenant.key_sha256):
            raise Refusal(reasons.UNAUTHORIZED)
        return tenant.name


class Hosts:
    """Checks the Host of requests if no API keys are configured.

    A web page can point its own name at 127.0.0.1 (DNS rebinding), and the browser then takes the gateway for that page's
    server. Such a request has the page's name as its Host. So on loopback, without keys and TLS, a Host must be a name that no
    stranger can own: an address, localhost, a name without a dot or of a private domain, this machine's name, or a configured
    one.
    """

    def __init__(self, settings: Settings) -> None:
        names = {name.strip().lower() for name in settings.allowed_hosts.split(",")} - {""}
        self._any = "*" in names or not (names or (is_loopback(settings.host) and not settings.tls_cert))
        self._names = names | {socket.gethostname().lower()}
        self._is_ours = lru_cache(1024)(self._find)

    def check(self, head: RequestHead) -> None:
        if not self._any and not self._is_ours(head.fields.get(b"host", b"localhost")):
            raise Refusal(reasons.BAD_HOST)

    def _find(self, host: bytes) -> bool:
        name = host.decode("ascii").lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].removesuffix(".")
        return "." not in name or name in self._names or name.endswith(_PRIVATE_SUFFIXES) or is_address(name)


class CallIds:
    """Makes the gateway's call ids, which have a fixed length and cannot be guessed; draws random bytes for 256 at a time."""

    def __init__(self) -> None:
        self._random = ""
        self._at = 0

    def new(self) -> str:
        at = self._at
        if at >= len(self._random):
            self._random, at = secrets.token_hex(_DIGITS // 2 * 256), 0
        self._at = at + _DIGITS
        return "hu-" + self._random[at : at + _DIGITS]

    def of(self, head: RequestHead | None, in_use: Container[str]) -> str:
        """Return the client's own id if it is well-formed, with a suffix if it is in use; else a new one."""
        given = head.fields.get(b"x-request-id") if head is not None else None
        if given is not None and _CALL_ID.fullmatch(given):
            return unused(given.decode("ascii"), in_use)
        return self.new()


def unused(id: str, in_use: Container[str]) -> str:
    """Return the id, with a random suffix if a live call has it already."""
    return id if id not in in_use else f"{id[:100]}-{secrets.token_hex(6)}"


def check_route(route: Route | None, head: RequestHead) -> Route:
    """Return the route if it accepts the request, else raise a `Refusal`."""
    allowed = route is not None and (head.method in route.methods or head.method in allowed_methods(route))
    if not allowed and head.method not in _METHODS:
        raise Refusal(reasons.NOT_IMPLEMENTED, f"Unknown method {head.method}.")
    if route is None:
        raise Refusal(reasons.NOT_FOUND, why_not(head.path))
    if not allowed:
        raise Refusal(reasons.METHOD_NOT_ALLOWED)
    if b"origin" in head.fields and head.method == "POST" and not _is_json(head) and is_of_other_site(head):
        # Browsers send such a request to any address without a preflight.
        raise Refusal(reasons.UNSUPPORTED_MEDIA_TYPE)
    return route


def is_of_other_site(head: RequestHead) -> bool:
    """Return whether a page of another site may have sent the request without permission.

    A page can send a key in a header only after a preflight, and never with a WebSocket's handshake.
    """
    origin = head.fields.get(b"origin", b"").lower()
    if not origin or b"authorization" in head.fields or b"x-api-key" in head.fields:
        return False
    return origin.partition(b"://")[2] != head.fields.get(b"host", b"").lower()


def allowed_methods(route: Route) -> tuple[str, ...]:
    """Return the route's methods, with HEAD wherever there is GET."""
    methods = route.methods
    return (*methods, "HEAD") if "GET" in methods and "HEAD" not in methods else methods


def own_deadline(head: RequestHead) -> float:
    """Return how long the client waits for the whole answer, by its `x-request-timeout`; infinity if it does not say."""
    given = head.fields.get(b"x-request-timeout")
    if given is None:
        return math.inf
    if not _SECONDS.fullmatch(given):
        raise Refusal(reasons.BAD_DEADLINE)
    return float(given)


def sdk_read_timeout(head: RequestHead) -> float:
    """Return the read timeout that the official SDKs send. It is not a user's choice, so an invalid value is ignored."""
    given = head.fields.get(b"x-stainless-read-timeout")
    return float(given) if given is not None and _SECONDS.fullmatch(given) else math.inf


def _is_json(head: RequestHead) -> bool:
    return head.fields.get(b"content-type", b"").partition(b";")[0].strip().lower() == b"application/json"


def client_kind(head: RequestHead) -> str:
    """Return the client's name from its user-agent, without the version: clients of one kind wait about equally long."""
    kind: str | None = head.notes.get("client")
    if kind is None:
        agent = head.fields.get(b"user-agent", b"")
        kind = head.note("client", agent[:_AGENT_BYTES].replace(b" ", b"/").partition(b"/")[0].decode("latin-1").lower())
    return kind


def refusal_headers(request: IncomingRequest, reason: Reason) -> Headers:
    """Return the headers that tell a refused client what would be allowed."""
    if reason is reasons.UNAUTHORIZED:
        return [(b"www-authenticate", b"Bearer")]
    if reason is reasons.METHOD_NOT_ALLOWED and request.route is not None:
        return [(b"allow", ", ".join(allowed_methods(request.route)).encode("ascii"))]
    return []


def check_model_name(name: str, limits: RequestLimits) -> None:
    """Raise a `Refusal` if a model's name is too long: names are kept after their call, so they must be small."""
    if len(name.encode()) > limits.name_bytes_max:
        raise Refusal(reasons.BAD_FIELD, name_too_long(limits))


def name_too_long(limits: RequestLimits) -> str:
    return f"The model's name is longer than {limits.name_bytes_max} bytes (name_bytes_max)."
