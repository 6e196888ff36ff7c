"""One backend: its address, its load, its connections and its adapter."""

from __future__ import annotations

import asyncio
import math
from functools import lru_cache
from typing import Any, Final

from hangup.config import BackendLimits, BackendSettings, DiscoveredBackend, keys
from hangup.core.admission import BackendLoad, HealthEvent
from hangup.core.catalog import Offer
from hangup.errors import ConfigError
from hangup.gateway.backends.adapters import ADAPTERS, AUTO, GENERIC, Abort, EngineAdapter, Facts, Seen, provider_of
from hangup.gateway.backends.pool import Dial, Pool
from hangup.gateway.backends.slots import SlotPool
from hangup.gateway.http.head import HOP_BY_HOP, Headers, RequestHead

# Client headers that are hop-by-hop, or that the gateway sets itself.
_NOT_FORWARDED: Final = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"accept-encoding",
    b"cookie",
    b"x-request-id",
    b"x-request-timeout",
    b"x-stainless-read-timeout",
}
_WITH_BODY: Final = frozenset(["POST", "PUT", "PATCH", "DELETE"])
_MODELS_REST_MAX: Final = 8.0  # times `models_interval_s`
_KEYS: Final = frozenset([b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"])

_PROTOCOLS: Final = b"sec-websocket-protocol"
_KEY_PROTOCOL: Final = b"openai-insecure-api-key."  # browsers cannot send a key elsewhere in a WebSocket handshake


class Backend:
    __slots__ = (
        "_alike",
        "_dropped",
        "_dropped_without_key",
        "_host",
        "_key",
        "_prefix",
        "_slots_given",
        "adapter",
        "facts",
        "facts_known",
        "fault",
        "has_peers",
        "inquiries",
        "last_output_at",
        "limits",
        "load",
        "model_rows",
        "models_asked_at",
        "models_rest",
        "name",
        "passes_client_key",
        "pinned",
        "pool",
        "settings",
        "slots",
    )

    def __init__(
        self,
        settings: BackendSettings,
        limits: BackendLimits,
        loop: asyncio.AbstractEventLoop,
        slots: int = 0,
        dial: Dial | None = None,
        *,
        has_peers: bool = False,
    ) -> None:
        self.settings = settings
        self.has_peers = has_peers  # other gateway processes of the same whole send calls there, too
        self.limits = limits
        self.pool = Pool(settings, limits, loop, dial)
        self.name = settings.name or self.pool.address.authority + self.pool.address.prefix
        self.load = BackendLoad(
            self.name,
            slots=settings.slots or slots,
            weight=settings.weight,
            failures_max=limits.failures_max,
            kv_tokens=settings.kv_tokens,
            step_slo_s=limits.step_slo_s,
        )
        if isinstance(settings, DiscoveredBackend) and settings.warm_up:
            self.load.health.apply(HealthEvent.FOUND_NEW)
        # A backend counts as the least capable kind until it was recognised.
        self._slots_given = bool(self.load.slots)
        self.facts_known = False  # its facts were queried
        self.fault = ""  # of the last health check
        self.inquiries = 0  # in which it left questions about them unanswered
        self.slots = SlotPool()
        self.last_output_at = -math.inf  # when it last sent anything for a call that has ended
        self.pinned = 0  # live calls that are pinned to a slot
        if keys.has_own_key(settings) and not settings.key:  # no client's request may go out with an empty one
            raise ConfigError([f"backend {self.name}: its key was not read"])
        self._key = self.pool.secret = settings.key.reveal().encode("ascii")
        self.passes_client_key = True  # if the backend has no key of its own
        self.model_rows: list[dict[str, Any]] | None = None  # as it lists them; None: it does not, or was not queried yet
        self.models_asked_at: float | None = None
        self.models_rest = 1.0  # how many times the usual pause the next one is
        self._host = self.pool.address.authority.encode("ascii")
        self._prefix = self.pool.address.prefix
        adapter = (provider_of(self.pool.address.host) or GENERIC) if settings.engine == AUTO else ADAPTERS[settings.engine]
        named = settings.engine != AUTO
        self.use_adapter(adapter, Facts(can_abort=named and adapter.abort("probe") is not None))

    def take_limits(self, limits: BackendLimits) -> None:
        """Apply new limits after a reload; running calls go on."""
        self.limits = self.pool.limits = limits
        self.load.health.failures_max = limits.failures_max
        self.load.limiter.step_slo_s = limits.step_slo_s

    def take_settings(self, settings: BackendSettings) -> None:
        """Apply the settings of a reload, which differ from the old ones in the secrets alone, if at all."""
        self.settings = settings
        self._key = self.pool.secret = settings.key.reveal().encode("ascii")
        self._alike = _group_of(self.adapter, self._key, self._prefix)

    def use_adapter(self, adapter: EngineAdapter, facts: Facts) -> None:
        """Set the kind of engine and what it can do."""
        self._alike = _group_of(adapter, self._key, self._prefix)
        self.adapter: EngineAdapter = adapter
        self.facts = facts
        if facts.slots and not self._slots_given:
            self.load.slots = facts.slots
        self.load.limiter.forget(by_tokens=not adapter.hosted)
        others = self.settings.shared or self.has_peers
        may_pin = adapter.pins_slots and facts.reports_status and self.settings.pin_slots and not others
        self.slots.resize(facts.slots if may_pin else 0)
        if may_pin:  # slots that are busy already get no call, not even before the first status query
            self.load.occupied = self.slots.occupied(facts.at_work, self.slots.taken)
        self._dropped = _NOT_FORWARDED | adapter.stripped_headers
        self._dropped_without_key = self._dropped | _KEYS

    def __repr__(self) -> str:
        state = "up" if self.load.health.up else "down"
        return f"<backend {self.name} {self.adapter.name} {state} in_flight={self.load.in_flight}>"

    @property
    def reports_status(self) -> bool:
        """True if the backend reports what it runs."""
        return self.facts.reports_status and bool(self.adapter.status_path)

    def pin(self, choices: int) -> int | None:
        """Assign the most recently used free slot to a call; None if the engine must choose one."""
        slot = self.slots.take() if choices == 1 else None
        self.pinned += slot is not None
        return slot

    def unpin(self, slot: int | None) -> None:
        """Free the slot of a call that has ended."""
        if slot is not None:
            self.pinned -= 1
            self.slots.give(slot)

    def leave_pinned(self, slot: int | None) -> None:
        """Record the end of a pinned call that the engine may still run: its slot stays taken until `free_slot`."""
        if slot is not None:
            self.pinned -= 1

    def free_slot(self, slot: int | None) -> None:
        """Free the slot of an ended call that the engine has stopped."""
        if slot is not None:
            self.slots.give(slot)

    @property
    def gets_client_key(self) -> bool:
        """True if the backend gets the client's key; otherwise it gets one of ours, or none."""
        return self.passes_client_key and not self._key

    # Its models

    def models_answered(self, answer: Seen, now: float) -> None:
        """Store the answer to a request for its models. If the backend failed to answer, the previous list stays."""
        if answer.status == 0 or answer.status >= 500:
            return
        rows = self.adapter.read_models(answer)
        same = self.models_asked_at is not None and _model_names(rows) == _model_names(self.model_rows)
        self.models_rest = min(2 * self.models_rest, _MODELS_REST_MAX) if same else 1.0
        self.models_asked_at, self.model_rows = now, rows

    def offer(self) -> Offer:
        """Return what clients can request from the backend, as far as is known."""
        settings, adapter, rows = self.settings, self.adapter, self.model_rows
        return Offer(
            apis=frozenset(settings.apis) or adapter.apis,
            apis_only=bool(settings.apis),
            models=frozenset(name for row in rows for name in adapter.model_names(row)) if rows is not None else None,
            names=frozenset(name for name in settings.models if "*" not in name),
            patterns=tuple(name for name in settings.models if "*" in name),
            complete=rows is not None and adapter.lists_all(rows),
            asked=self.models_asked_at is not None,
            tagged=adapter.tagged_models,
        )

    def request_id(self, call_id: str, key: str) -> str:
        """Return the X-Request-Id to send: the call's own id, unless this header carries the key for aborts, or may turn out
        to."""
        return key if not self.facts_known or (self.adapter.keyed_by == "header" and self.facts.can_abort) else call_id

    def abort(self, key: str) -> Abort | None:
        """Return the request that aborts a call by the engine's id of it, or None if this backend has no abort."""
        return self.adapter.abort(key) if self.facts.can_abort and key else None

    def request(
        self,
        head: RequestHead,
        path: str,
        body: bytes,
        *,
        request_id: str,
        timeout_s: float | None,
        forward_key: bool,
        traced: str = "",
        upgrade: bool = False,
        query: bytes | None = None,
    ) -> tuple[bytes, bytes]:
        """Build the engine's request, head and body. `upgrade`: it is a WebSocket handshake; `query`: replaces the client's
        query."""
        if head.method not in _WITH_BODY:
            body = b""  # meaningless for this method, and some engines would parse it as the next request
        shown = forward_key and self.passes_client_key and not self._key
        if traced or upgrade or query is not None:
            line, fields = self._start(head, path, shown=shown, traced=traced, upgrade=upgrade, query=query)
        else:  # the same for all requests with this head, at all backends that differ only in their addresses
            key = (self._alike, path, shown)
            line, fields = head.notes.get(key) or head.note(key, self._start(head, path, shown=shown))
        timeout = b"" if timeout_s is None else b"x-request-timeout: %.3f\r\n" % timeout_s
        length = b"content-length: %d\r\n" % len(body) if body or head.method == "POST" else b""
        parts = (line, self._host, fields, request_id.encode("ascii"), timeout, length)
        return b"%b%b%bx-request-id: %b\r\n%b%b\r\n" % parts, body

    def _start(
        self,
        head: RequestHead,
        path: str,
        *,
        shown: bool,
        traced: str = "",
        upgrade: bool = False,
        query: bytes | None = None,
    ) -> tuple[bytes, bytes]:
        """Build the head of the engine's request, up to the backend's address and after it, without what differs from one
        request to the next. `shown`: the engine gets the client's key."""
        dropped = self._dropped if shown else self._dropped_without_key
        if head.fields.get(b"connection", b"keep-alive") not in (b"keep-alive", b"close"):
            dropped = dropped | {name.replace(b"_", b"-") for name in head.connection_options()}
        if traced:
            dropped = dropped | {b"traceparent"}
        if upgrade:
            dropped = dropped | {_PROTOCOLS}
        query_string = head.query if query is None else query
        line = b"%b %b%b HTTP/1.1\r\nhost: " % (head.method.encode("ascii"), self._target(path), query_string)
        lines = [b"\r\n"]
        # Some engines (CGI, WSGI) read underscores in names as hyphens.
        lines += [b"%b: %b\r\n" % pair for pair in head.headers if pair[0].replace(b"_", b"-") not in dropped]
        lines.append(b"accept-encoding: identity\r\n")
        if traced:
            lines.append(b"traceparent: %b\r\n" % traced.encode("ascii"))
        if self._key:
            lines.append(self.adapter.key_headers(self._key, b"anthropic-version" in head.fields))
        if upgrade:
            lines.append(b"connection: Upgrade\r\nupgrade: websocket\r\n")
            protocols = head.fields.get(_PROTOCOLS, b"")
            if protocols:
                lines.append(b"%b: %b\r\n" % (_PROTOCOLS, protocols if shown else _without_keys(protocols)))
        return line, b"".join(lines)

    def own_request(self, method: str, path: str, body: bytes = b"", headers: Headers | None = None) -> tuple[bytes, bytes]:
        """Build a request of the gateway itself, such as a health check or an abort: head and body."""
        lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method.encode(), self._target(path), self._host)]
        lines += [b"%b: %b\r\n" % pair for pair in headers or []]
        if self._key:
            lines.append(self.adapter.key_headers(self._key, any(name == b"anthropic-version" for name, _ in headers or [])))
        if body:
            lines.append(b"content-type: application/json\r\n")
        lines.append(b"accept-encoding: identity\r\nuser-agent: hangup\r\ncontent-length: %d\r\n\r\n" % len(body))
        return b"".join(lines), body

    def _target(self, path: str) -> bytes:
        return (self._prefix + path).encode("ascii")


def _model_names(rows: list[dict[str, Any]] | None) -> list[object] | None:
    """Return the names of models alone: some engines list other times and numbers with them in each answer."""
    return [row.get("id") for row in rows] if rows is not None else None


@lru_cache(256)
def _group_of(adapter: EngineAdapter, key: bytes, prefix: str) -> object:
    """Return the same object for all backends whose requests differ in nothing but the address."""
    return object()


def _without_keys(protocols: bytes) -> bytes:
    return b", ".join(p for p in map(bytes.strip, protocols.split(b",")) if not p.startswith(_KEY_PROTOCOL))
