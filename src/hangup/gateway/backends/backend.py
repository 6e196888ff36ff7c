"""One backend: its address, its place in the balance, its connections and its adapter."""

from __future__ import annotations

import asyncio
import math
import os
from typing import Any

from hangup.config import BackendLimits, BackendSettings, keys
from hangup.core.admission import BackendLoad
from hangup.core.catalog import Offer
from hangup.gateway.backends.adapters import ADAPTERS, AUTO, GENERIC, Abort, EngineAdapter, Facts, Seen, hosted
from hangup.gateway.backends.pool import Dial, Pool
from hangup.gateway.backends.slots import SlotPool
from hangup.gateway.http.head import HOP_BY_HOP, Headers, RequestHead

# Of the client's headers, what is between it and us, or what we set anew.
_NOT_FORWARDED = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"accept-encoding",
    b"cookie",
    b"x-request-id",
    b"x-request-timeout",
    b"x-stainless-read-timeout",
}
_WITH_BODY = frozenset(["POST", "PUT", "PATCH", "DELETE"])
_KEYS = frozenset([b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"])

_PROTOCOLS = b"sec-websocket-protocol"
_KEY_PROTOCOL = b"openai-insecure-api-key."  # browsers have no other place for a key in a WebSocket's handshake


class Backend:
    def __init__(
        self,
        settings: BackendSettings,
        limits: BackendLimits,
        loop: asyncio.AbstractEventLoop,
        slots: int = 0,
        dial: Dial | None = None,
    ) -> None:
        self.settings = settings
        self.limits = limits
        self.pool = Pool(settings, limits, loop, dial)
        self.name = settings.name or self.pool.address.authority + self.pool.address.prefix
        self.seat = BackendLoad(
            self.name,
            slots=settings.slots or slots,
            weight=settings.weight,
            failures_max=limits.failures_max,
            kv_tokens=settings.kv_tokens,
            step_slo_s=limits.step_slo_s,
        )
        # Until a backend has told what it is, it is treated as the least capable kind.
        self._slots_given = bool(self.seat.slots)
        self.learned = False  # its facts were asked for
        self.slots = SlotPool()
        self.heard_at = -math.inf  # when anything last came from it for a call that is over
        self.pinned = 0  # live calls that have one
        # Nothing of a client's may be asked for with a key that is not there: an unset one is an error.
        self._key = keys.read(settings.api_key_env, os.environ).encode("ascii") if settings.api_key_env else b""
        self.passes_client_key = True  # where it has none of its own
        self.model_rows: list[dict[str, Any]] | None = None  # as it lists them; None: it does not, or was not asked yet
        self.models_asked_at: float | None = None
        adapter = (hosted(self.pool.address.host) or GENERIC) if settings.engine == AUTO else ADAPTERS[settings.engine]
        named = settings.engine != AUTO
        self.use(adapter, Facts(can_abort=named and adapter.abort("probe") is not None))
        self._host = self.pool.address.authority.encode("ascii")
        self._prefix = self.pool.address.prefix

    def take_limits(self, limits: BackendLimits) -> None:
        """New limits, after a reload; what it runs goes on."""
        self.limits = self.pool.limits = limits
        self.seat.failures_max = limits.failures_max
        self.seat.limiter.step_slo_s = limits.step_slo_s

    def use(self, adapter: EngineAdapter, facts: Facts) -> None:
        """Says what kind of engine this is and what it can do."""
        self.adapter = adapter
        self.facts = facts
        if facts.slots and not self._slots_given:
            self.seat.slots = facts.slots
        self.seat.limiter.forget(by_tokens=not adapter.hosted)
        may_pin = adapter.pins_slots and facts.can_tell and self.settings.pin_slots and not self.settings.shared
        self.slots.resize(facts.slots if may_pin else 0)
        if may_pin:  # what it is at already gets no call, not even before the first look
            self.seat.occupied = self.slots.occupied(facts.at_work, self.slots.taken)
        self._dropped = _NOT_FORWARDED | adapter.stripped_headers
        self._dropped_without_key = self._dropped | _KEYS

    def __repr__(self) -> str:
        state = "up" if self.seat.up else "down"
        return f"<backend {self.name} {self.adapter.name} {state} in_flight={self.seat.in_flight}>"

    @property
    def can_tell(self) -> bool:
        """Whether it says what it runs."""
        return self.facts.can_tell and bool(self.adapter.status_path)

    def pin(self, choices: int) -> int | None:
        """A slot for one call, the one that was used last; None if it must find one by itself."""
        slot = self.slots.take() if choices == 1 else None
        self.pinned += slot is not None
        return slot

    def unpin(self, slot: int | None) -> None:
        """Its call is over, and the slot is free."""
        if slot is not None:
            self.pinned -= 1
            self.slots.give(slot)

    def leave_pinned(self, slot: int | None) -> None:
        """Its call is over, and the engine may still be at work on it there: the slot stays taken until `free_slot`."""
        if slot is not None:
            self.pinned -= 1

    def free_slot(self, slot: int | None) -> None:
        """The engine has let go of a call that is over."""
        if slot is not None:
            self.slots.give(slot)

    @property
    def shown_client_key(self) -> bool:
        """Whether it gets the key that a client sends; else it gets one of ours, or none."""
        return self.passes_client_key and not self._key

    # Its models

    def told_models(self, answer: Seen, now: float) -> None:
        """What it answered to the question for its models. When it fails to answer, what it said before holds."""
        if answer.status == 0 or answer.status >= 500:
            return
        self.models_asked_at = now
        self.model_rows = self.adapter.read_models(answer)

    def offer(self) -> Offer:
        """What can be asked of it, as far as is known."""
        settings, adapter, rows = self.settings, self.adapter, self.model_rows
        return Offer(
            apis=frozenset(settings.apis) or adapter.apis,
            apis_only=bool(settings.apis),
            models=frozenset(name for row in rows for name in adapter.model_names(row)) if rows is not None else None,
            patterns=settings.models,
            complete=rows is not None and adapter.lists_all(rows),
            asked=self.models_asked_at is not None,
            tagged=adapter.tagged_models,
        )

    def request_id(self, call_id: str, key: str) -> str:
        """The X-Request-Id that it gets: the call's own, unless that is, or may turn out to be, the name it is stopped by."""
        return key if not self.learned or (self.adapter.keyed_by == "header" and self.facts.can_abort) else call_id

    def abort(self, key: str) -> Abort | None:
        """How to stop a call by the engine's name for it, if that can be done here."""
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
        """The request as the engine gets it, head and body; `upgrade`: a WebSocket's handshake, `query`: not the client's."""
        if head.method not in _WITH_BODY:
            body = b""  # it means nothing there, and some engines would take it for the next request
        shown = forward_key and self.passes_client_key and not self._key
        dropped = self._dropped if shown else self._dropped_without_key
        if head.fields.get(b"connection", b"keep-alive") not in (b"keep-alive", b"close"):
            dropped = dropped | head.connection_options()
        if traced:
            dropped = dropped | {b"traceparent"}
        if upgrade:
            dropped = dropped | {_PROTOCOLS}
        asked = head.query if query is None else query
        lines = [f"{head.method} {self._prefix}{path}".encode("ascii"), asked, b" HTTP/1.1\r\nhost: ", self._host, b"\r\n"]
        lines += [b"%b: %b\r\n" % pair for pair in head.headers if pair[0] not in dropped]
        lines.append(b"accept-encoding: identity\r\nx-request-id: %b\r\n" % request_id.encode("ascii"))
        if traced:
            lines.append(b"traceparent: %b\r\n" % traced.encode("ascii"))
        if self._key:
            lines.append(self.adapter.key_headers(self._key, b"anthropic-version" in head.fields))
        if timeout_s is not None:
            lines.append(b"x-request-timeout: %.3f\r\n" % timeout_s)
        if body or head.method == "POST":
            lines.append(b"content-length: %d\r\n" % len(body))
        if upgrade:
            lines.append(b"connection: Upgrade\r\nupgrade: websocket\r\n")
            protocols = head.fields.get(_PROTOCOLS, b"")
            if protocols:
                lines.append(b"%b: %b\r\n" % (_PROTOCOLS, protocols if shown else _without_keys(protocols)))
        lines.append(b"\r\n")
        return b"".join(lines), body

    def own_request(self, method: str, path: str, body: bytes = b"", headers: Headers | None = None) -> tuple[bytes, bytes]:
        """A request of the gateway itself, head and body: a health check, an abort."""
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


def _without_keys(protocols: bytes) -> bytes:
    return b", ".join(p for p in map(bytes.strip, protocols.split(b",")) if not p.startswith(_KEY_PROTOCOL))
