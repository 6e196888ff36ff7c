"""Which backends a call may go to, and what is told of their models: `core.catalog`, fed and asked.

Backends are asked for their models at intervals (`engines.health`). A name that nobody has is not refused on old news: they are
asked again first, all at once and once for all calls that wait for it.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson

from hangup.apis import model_field
from hangup.apis.routes import ANTHROPIC_MODELS, Models
from hangup.app import reply
from hangup.config import Settings
from hangup.config.keys import shown_clients_keys
from hangup.core import reasons
from hangup.core.admission import Ticket
from hangup.core.catalog import Catalog
from hangup.duties import DUTIES
from hangup.engines.backend import Backend
from hangup.engines.health import ask_models

if TYPE_CHECKING:
    from hangup.app.exchange import Exchange
    from hangup.app.gateway import Gateway

_NEWS_S = 1.0  # what a backend said of its models is believed for so long, before a name is refused
_LISTED_IN_ERROR_MAX = 10
Row = dict[str, Any]


class Routing:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.catalog = Catalog()
        self._asks: dict[Backend, asyncio.Task[None]] = {}
        self._reads_bodies = False  # whether it matters which model a request names that is not read otherwise
        self._answers_models = False

    def configure(self, settings: Settings) -> None:
        backends = self._gateway.backends.values()
        shown = shown_clients_keys(settings.backend)
        for backend in backends:
            backend.passes_client_key = backend.settings in shown
        self.catalog.configure({b.name: b.offer() for b in backends}, {a.name: a.model for a in settings.alias})
        self._reads_bodies = len(backends) > 1 or bool(settings.alias)
        # One backend by itself answers for itself, byte for byte.
        self._answers_models = self._reads_bodies or any(b.settings.models for b in backends)
        self._regroup()

    async def close(self) -> None:
        for task in self._asks.values():
            task.cancel()
        await asyncio.gather(*self._asks.values(), return_exceptions=True)

    # What backends tell

    def told_models(self, backend: Backend) -> None:
        """It has been asked for its models."""
        self.catalog.expire(time.monotonic())
        if self._gateway.backends.get(backend.name) is backend and self.catalog.learn(backend.name, backend.offer()):
            names = [row["id"] for row in backend.model_rows or ()]
            self._gateway.told("models", backend=backend.name, models=names)
            self._regroup()

    def _regroup(self) -> None:
        """Those who wait may have other backends to wait for."""
        admission = self._gateway.admission
        for line in (admission.queue, admission.jobs):
            line.regroup(self._seats_of)
        self._gateway.dispatch()

    def _seats_of(self, ticket: Ticket) -> frozenset[str] | None:
        exchange: Exchange = ticket.key
        if exchange.home in self._gateway.backends:
            return frozenset([exchange.home])
        seats = self.catalog.find(exchange.api.family, exchange.wanted).seats
        return seats if seats is None or seats else None  # nobody has it any more: that is for an engine to say

    def _ask(self, backend: Backend) -> asyncio.Task[None]:
        """Asks for its models now, once for all who want to know."""
        task = self._asks.get(backend)
        if task is None:
            task = self._asks[backend] = DUTIES.start("models", self._ask_now(backend))
        return task

    async def _ask_now(self, backend: Backend) -> None:
        try:
            await ask_models(backend, at_once=True)
            self.told_models(backend)
        except Exception as error:
            self._gateway.log.fault(error, "")
        finally:
            del self._asks[backend]

    # Where a call goes

    def finds(self, exchange: Exchange, *, asked: bool = False) -> bool:
        """Whether the call goes to a backend now. Else it was refused, or will be back."""
        if exchange.ask is not None:
            exchange.wanted = exchange.ask.model
        elif self._reads_bodies:
            exchange.wanted = exchange.named_model()
        found = self.catalog.find(exchange.api.family, exchange.wanted)
        if found.alias:
            exchange.renamed = exchange.call.model = found.model
        exchange.seats = found.seats
        if exchange.home in self._gateway.backends:
            exchange.seats = frozenset([exchange.home])
        if exchange.seats is None or exchange.seats:
            return True
        old = [] if asked else self._not_asked_lately()
        if old:
            exchange.task = DUTIES.start("models", self._ask_first(exchange, old))
            exchange.reset_timer()
        else:
            self._refuse(exchange)
        return False

    def knowing(self, exchange: Exchange, body: bytes) -> frozenset[str] | None:
        """The backends that can answer a question; None: any, which is then for them to say."""
        head = exchange.head
        if not self._reads_bodies or head is None:
            return None
        exchange.wanted = model_field.find(body, head.fields.get(b"content-type", b""), head.query)
        found = self.catalog.find(exchange.api.family, exchange.wanted)
        if found.alias:
            exchange.renamed = exchange.call.model = found.model
        return found.seats or None

    def _not_asked_lately(self) -> list[Backend]:
        since = self._gateway.loop.time() - _NEWS_S
        # One that is down would keep the client waiting, and say nothing new.
        could = [b for b in self._gateway.backends.values() if b.seat.up and not b.settings.models]
        return [b for b in could if b.models_asked_at is None or b.models_asked_at < since]

    async def _ask_first(self, exchange: Exchange, backends: list[Backend]) -> None:
        await asyncio.wait([self._ask(backend) for backend in backends])
        exchange.task = None
        try:
            exchange.find_place(asked=True)
        except Exception as error:
            exchange.fault(error)

    def _refuse(self, exchange: Exchange) -> None:
        api = exchange.api.family
        if not self.catalog.speaks(api):
            exchange.end(reasons.NOT_FOUND, f"No backend speaks the {api} API.")
            return
        exchange.end(reasons.MODEL_NOT_FOUND, self._unknown(exchange.wanted, api))

    def _unknown(self, model: str, api: str) -> str:
        near = self.catalog.nearest(model, api)
        names = [] if near else self.catalog.names(api)
        words = f" Did you mean {_one_of(near)}?" if near else ""
        if names and len(names) <= _LISTED_IN_ERROR_MAX:
            words = f" Available: {', '.join(names)}."
        return f"The model {model[:200]!r} does not exist.{words}"

    def refused(self, exchange: Exchange, backend: Backend) -> None:
        """A backend answered 404: it has no such model, or does not speak this API; others are asked first for a while."""
        until = time.monotonic() + self._gateway.limits.model_refused_s
        self.catalog.refused(backend.name, exchange.api.family, exchange.renamed or exchange.wanted, until)
        if backend.models_asked_at is None or backend.models_asked_at < self._gateway.loop.time() - _NEWS_S:
            self._ask(backend)
        ticket = exchange.ticket
        if ticket is not None:
            found = self.catalog.find(exchange.api.family, exchange.wanted).seats
            ticket.seats = found if found is None or found else ticket.seats

    # The models there are

    def answers(self, exchange: Exchange) -> bool:
        """GET /v1/models, answered for all backends; False if it is for one of them to answer."""
        head = exchange.head
        if not self._answers_models or not isinstance(exchange.api, Models) or head is None:
            return False
        anthropic = b"anthropic-version" in head.fields
        if anthropic:
            exchange.api = ANTHROPIC_MODELS
        rows = self.rows(exchange.api.family)
        if not rows:
            return False  # none of them has a list
        name = unquote(head.path.removeprefix("/v1/models").removeprefix("/"))
        if name and name not in rows:
            exchange.end(reasons.MODEL_NOT_FOUND, self._unknown(name, exchange.api.family))
            return True
        shaped = {id: _for_anthropic(row) if anthropic else _for_openai(row) for id, row in rows.items()}
        ids = list(shaped)
        listing: Row = {"object": "list", "data": list(shaped.values())}
        if anthropic:
            listing = {"data": listing["data"], "has_more": False, "first_id": ids[0], "last_id": ids[-1]}
        body = orjson.dumps(shaped[name] if name else listing)
        reply.made(exchange, 200, b"application/json", self._gateway.origins.headers(head), body)
        exchange.end(reasons.COMPLETED)
        return True

    def rows(self, api: str) -> dict[str, Row]:
        """The models that can be asked for, by name, as their backends tell of them."""
        told: dict[str, Row] = {}
        for backend in self._gateway.backends.values():
            for row in backend.model_rows or ():
                told.setdefault(row["id"], row)
        aliases = self.catalog.aliases
        configured = {name for backend in self._gateway.backends.values() for name in backend.settings.models}
        rows: dict[str, Row] = {}
        for name in self.catalog.names(api):
            if name in aliases:
                rows[name] = {**told.get(aliases[name], {}), "id": name, "root": aliases[name]}
            elif name in told or name in configured:  # not every name that a model goes by
                rows[name] = told.get(name, {"id": name})
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
