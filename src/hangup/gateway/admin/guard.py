"""Decides who may use the admin port.

- On loopback anybody on this machine may, as with any local tool; elsewhere a token is required (`admin_token`).
- Another site's web page must not reach it through a browser that can. So the Host header must be a name of ours (against
  DNS rebinding), and a request that changes something must neither come from another origin nor be one that any page can
  send without a preflight (so it needs the header `x-hangup: 1`).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hangup.gateway.http.hosts import is_address

CSRF_HEADER = "x-hangup"
_SAFE_METHODS = frozenset(["GET", "HEAD", "OPTIONS"])
# Probes and the page itself contain no secrets; the page asks for the token and sends it with its requests.
PAGE_PATHS = frozenset(["/", "/page.css", "/page.js", "/parts.js", "/graph.js", "/uplot.js", "/uplot.css"])
_OPEN_PATHS = PAGE_PATHS | {"/healthz", "/readyz"}
_PAGE_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


@dataclass(slots=True)
class Policy:
    """The token's digest (empty: none is required) and the host names that are ours. A reload may change the token."""

    token_sha256: bytes = b""
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, token: str, names: str, host: str) -> Policy:
        ours = {"localhost", host.lower(), *(name.strip().lower() for name in names.split(","))} - {""}
        return cls(hashlib.sha256(token.encode()).digest() if token else b"", frozenset(ours))

    def refuses(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """Return status and reason if the request must be refused, else None."""
        if not self._is_ours(headers.get("host", "")):
            return 421, "the admin port does not serve this host name; add it to admin_names"
        if method not in _SAFE_METHODS:
            if self._is_foreign(headers):
                return 403, "cross-site requests are refused"
            if CSRF_HEADER not in headers:
                return 403, f"missing header {CSRF_HEADER}: 1"
        if self.token_sha256 and path not in _OPEN_PATHS and not self._knows_token(headers):
            return 401, "missing or invalid admin token; send it as Authorization: Bearer TOKEN"
        return None

    def _is_ours(self, host: str) -> bool:
        name = _host_name(host) if host and "@" not in host else ""
        return name in self.names or is_address(name)

    def _is_foreign(self, headers: Headers) -> bool:
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return True
        origin = headers.get("origin")
        if origin is None:
            return False
        try:
            return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
        except ValueError:
            return True

    def _knows_token(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(token.strip().encode()).digest()
        return hmac.compare_digest(given, self.token_sha256) and scheme.lower() == "bearer"


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""  # matches no name of ours


class Guard:
    """Applies the policy as middleware: a refused request reaches nothing behind it."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = self._policy.refuses(scope["method"], scope["path"], Headers(scope=scope))

        async def send_guarded(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_PAGE_HEADERS]  # type: ignore[misc]
            await send(message)

        if refusal is None:
            await self._app(scope, receive, send_guarded)  # type: ignore[arg-type]
            return
        status, why = refusal
        headers = {"www-authenticate": "Bearer"} if status == 401 else {}
        await JSONResponse({"error": why}, status, headers)(scope, receive, send_guarded)  # type: ignore[arg-type]
