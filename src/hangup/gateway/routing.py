"""Decides which backends may serve a call, and answers `/v1/models` for all of them, from `core.catalog`.

Health checks query the backends for their models at intervals (`backends.health`). Before a call for an unknown model is
refused, all backends are queried again, in parallel, and once for all calls that wait for the answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

import orjson

from hangup.config import AliasSettings, BackendSettings, FailoverLimits
from hangup.config.keys import backends_with_client_key
from hangup.core import reasons
from hangup.core.catalog import Catalog, Found
from hangup.errors import Refusal
from hangup.gateway.backend_set import Backends
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.health import ask_models
from hangup.gateway.http.head import RequestHead
from hangup.gateway.log import Log
from hangup.gateway.placement import BackendNames
from hangup.tasks import TASKS

_NEWS_S: Final = 1.0  # a model is refused only if the backends' lists are younger than this
_LISTED_IN_ERROR_MAX: Final = 10
_LOGGED_MAX: Final = 100  # names of a backend's models in a log line
Row = dict[str, Any]


class Wanted(NamedTuple):
    """What a call needs from its backend."""

    api: str = ""  # the family of its API
    model: str = ""  # as the client names it; empty if any will do
    home: str = ""  # the backend that stores the response that the call continues


NOTHING_WANTED: Final = Wanted()
wanted_of = lru_cache(1024)(Wanted)  # most calls want the same as others


class RoutingSettings(Protocol):
    """The settings that routing uses."""

    @property
    def backend(self) -> tuple[BackendSettings, ...]: ...

    @property
    def alias(self) -> tuple[AliasSettings, ...]: ...

    @property
    def limits(self) -> FailoverLimits: ...


class Routing:
    def __init__(self, backends: Backends, loop: asyncio.AbstractEventLoop, log: Log, regroup: Callable[[], None]) -> None:
        self.catalog = Catalog()
        self.reads_bodies = False  # the model decides the backend, even of requests that are not parsed for anything else
        self.answers_models = False  # the gateway answers /v1/models, for all backends
        self._backends = backends
        self._loop = loop
        self._log = log
        self._regroup = regroup  # waiting calls may have other eligible backends now
        self._asks: dict[Backend, asyncio.Task[None]] = {}
        self._refused_s = 0.0

    def configure(self, settings: RoutingSettings) -> None:
        """Apply the configured backends and aliases."""
        backends = self._backends.by_name.values()
        shown = backends_with_client_key(settings.backend)
        for backend in backends:
            backend.passes_client_key = backend.settings in shown
        self.catalog.configure({b.name: b.offer() for b in backends}, {a.name: a.model for a in settings.alias})
        self.reads_bodies = len(backends) > 1 or bool(settings.alias)
        # A single backend's own answer is passed on, byte for byte.
        self.answers_models = self.reads_bodies or any(b.settings.models for b in backends)
        self._refused_s = settings.limits.model_refused_s
        self._regroup()

    async def close(self) -> None:
        for task in self._asks.values():
            task.cancel()
        await asyncio.gather(*self._asks.values(), return_exceptions=True)

    # Models of the backends

    def models_reported(self, backend: Backend) -> None:
        """Note the models that a backend has reported."""
        self.catalog.expire(time.monotonic())
        if self._backends.by_name.get(backend.name) is backend and self.catalog.learn(backend.name, backend.offer()):
            names = [row["id"] for row in backend.model_rows or ()]
            self._log.event("models_changed", backend=backend.name, models=names[:_LOGGED_MAX], count=len(names))
            self._regroup()

    def stale_backends(self) -> list[Backend]:
        """Return the backends whose models were not queried lately."""
        since = self._loop.time() - _NEWS_S
        # A backend that is down would keep the client waiting, and report nothing new.
        candidates = [b for b in self._backends.by_name.values() if b.load.health.up and not b.settings.models]
        return [b for b in candidates if b.models_asked_at is None or b.models_asked_at < since]

    async def ask(self, backends: list[Backend]) -> None:
        """Query the backends for their models now; concurrent callers share one query."""
        await asyncio.wait([self._ask(backend) for backend in backends])

    def _ask(self, backend: Backend) -> asyncio.Task[None]:
        task = self._asks.get(backend)
        if task is None:
            task = self._asks[backend] = TASKS.start("models", self._ask_now(backend))
        return task

    async def _ask_now(self, backend: Backend) -> None:
        try:
            await ask_models(backend, at_once=True)
            self.models_reported(backend)
        except Exception as error:
            self._log.fault(error, "")
        finally:
            del self._asks[backend]

    # Backends for a call

    def find(self, wanted: Wanted) -> Found:
        """Return the backends that can serve a call. A call with a home goes nowhere else."""
        found = self.catalog.find(wanted.api, wanted.model)
        if wanted.home in self._backends.by_name:
            return found._replace(eligible=frozenset([wanted.home]))
        return found

    def eligible_backends(self, wanted: Wanted) -> BackendNames:
        """Return where a waiting call can go now."""
        eligible = self.find(wanted).eligible
        return eligible if eligible is None or eligible else None  # no backend has the model any more: let an engine say so

    def not_found(self, wanted: Wanted) -> Refusal:
        """Return the error for a call that no backend can serve."""
        if not self._backends.by_name:  # DNS lists none
            return Refusal(reasons.NO_BACKEND)
        if not self.catalog.speaks(wanted.api):
            return Refusal(reasons.NOT_FOUND, f"No backend speaks the {wanted.api} API.")
        return Refusal(reasons.MODEL_NOT_FOUND, self._unknown(wanted.model, wanted.api))

    def _unknown(self, model: str, api: str) -> str:
        near = self.catalog.nearest(model, api)
        names = [] if near else self.catalog.names(api)
        words = f" Did you mean {_one_of(near)}?" if near else ""
        if names and len(names) <= _LISTED_IN_ERROR_MAX:
            words = f" Available: {', '.join(names)}."
        return f"The model {model[:200]!r} does not exist.{words}"

    def refused(self, backend: Backend, wanted: Wanted, model: str) -> BackendNames:
        """Note a 404: the backend lacks the model or the API, so for a while other backends are preferred. Return the backends
        that are now eligible."""
        self.catalog.refused(backend.name, wanted.api, model, time.monotonic() + self._refused_s)
        if backend.models_asked_at is None or backend.models_asked_at < self._loop.time() - _NEWS_S:
            self._ask(backend)
        return self.catalog.find(wanted.api, wanted.model).eligible

    # `/v1/models`

    def list_models(self, head: RequestHead, api: str, *, anthropic: bool) -> bytes | None:
        """Return the answer to GET /v1/models for all backends; None if a backend should answer instead."""
        rows = self.rows(api)
        if not rows:
            return None  # no backend has a list
        name = unquote(head.path.removeprefix("/v1/models").removeprefix("/"))
        if name and name not in rows:
            raise Refusal(reasons.MODEL_NOT_FOUND, self._unknown(name, api))
        shaped = {id: _for_anthropic(row) if anthropic else _for_openai(row) for id, row in rows.items()}
        ids = list(shaped)
        listing: Row = {"object": "list", "data": list(shaped.values())}
        if anthropic:
            listing = {"data": listing["data"], "has_more": False, "first_id": ids[0], "last_id": ids[-1]}
        return orjson.dumps(shaped[name] if name else listing)

    def rows(self, api: str) -> dict[str, Row]:
        """Return the available models by name, as their backends describe them."""
        listed: dict[str, Row] = {}
        for backend in self._backends.by_name.values():
            for row in backend.model_rows or ():
                listed.setdefault(row["id"], row)
        aliases = self.catalog.aliases
        configured = {name for backend in self._backends.by_name.values() for name in backend.settings.models}
        rows: dict[str, Row] = {}
        for name in self.catalog.names(api):
            if name in aliases:
                rows[name] = {**listed.get(aliases[name], {}), "id": name, "root": aliases[name]}
            elif name in listed or name in configured:  # leaves out other names of the same model
                rows[name] = listed.get(name, {"id": name})
        return rows


def _one_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _for_openai(row: Row) -> Row:
    if row.get("object") == "model":
        return row
    return {"id": row["id"], "object": "model", "created": 0, "owned_by": str(row.get("owned_by", "hangup"))}


def _for_anthropic(row: Row) -> Row:
    if row.get("type") == "model":
        return row
    created = row.get("created")
    at = datetime.fromtimestamp(created if type(created) is int and 0 <= created < 1 << 33 else 0, UTC)
    return {"type": "model", "id": row["id"], "display_name": row["id"], "created_at": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
