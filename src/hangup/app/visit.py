"""A request that the gateway answers itself: about jobs and files.

It is a call like any other, with a log line and an outcome, but no engine has a part in it. There is a task, since the store
has to be waited for; the exchange owns it, and it is cancelled when the call ends, whoever ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from hangup.apis.base import Ask, Json
from hangup.app import reply
from hangup.app.carried import Carried
from hangup.app.kept import AboutResponse
from hangup.core import reasons
from hangup.core.call import UNLIMITED, Clock
from hangup.core.reasons import Reason
from hangup.duties import DUTIES
from hangup.edge.connection import ClientConnection
from hangup.errors import Refusal
from hangup.jobs.calls import EVENT_STREAM
from hangup.jobs.desk import Desk
from hangup.jobs.http import Answer, Asked, parse_query
from hangup.store.database import StoreFailed

if TYPE_CHECKING:
    from hangup.app.exchange import Exchange

_FORM_BYTES_MAX = 64 * 1024  # what a form has around its file


class Visit(Carried):
    """Stands between the client's connection and the exchange."""

    def __init__(self, exchange: Exchange, connection: ClientConnection, desk: Desk) -> None:
        head, limits = exchange.head, exchange.limits
        assert head is not None
        super().__init__(exchange)
        self._connection = connection
        self._desk = desk
        self._body: asyncio.Future[bytes] = exchange.gateway.loop.create_future()
        self._writable = asyncio.Event()
        if not connection.stalled:
            self._writable.set()
        host = head.fields.get(b"host", b"").decode("latin-1")
        secure = exchange.gateway.settings.tls_cert or head.fields.get(b"x-forwarded-proto") == b"https"
        self._head_only = head.method == "HEAD"
        self._asked = Asked(
            "GET" if self._head_only else head.method,
            head.path,
            parse_query(head.query),
            head.fields,
            exchange.call.tenant,
            limits,
            f"{'https' if secure else 'http'}://{host}",
        )

    @classmethod
    def begin(cls, exchange: Exchange, connection: ClientConnection, desk: Desk | None) -> Visit | None:
        """A request for a path of ours; None when it was refused."""
        if desk is None:
            exchange.end(reasons.NO_JOBS)
            return None
        visit = cls(exchange, connection, desk)
        try:
            visit._asked.upload = desk.upload(visit._asked, visit._pause)
        except Refusal as refusal:
            exchange.end(refusal.reason, refusal.detail)
            return None
        if visit._asked.upload is not None:
            visit.body_bytes_max = exchange.limits.file_bytes_max + _FORM_BYTES_MAX
            visit.body_s = exchange.limits.upload_s
        exchange.call.clock = Clock(total_s=visit.body_s + exchange.limits.total_s)
        exchange.task = DUTIES.start("job request", visit._run(None, {}))
        return visit

    @classmethod
    def defer(cls, exchange: Exchange, desk: Desk, ask: Ask, body: bytes, value: Json) -> None:
        """A generation call whose client does not wait: from here on the visit stands before the exchange."""
        connection = exchange.client
        assert isinstance(connection, ClientConnection)
        visit = cls(exchange, connection, desk)
        connection.exchange = visit
        exchange.call.clock = Clock(total_s=exchange.limits.total_s)
        visit._body.set_result(body)
        exchange.task = DUTIES.start("job request", visit._run(ask, value))

    # From the connection

    def body_piece(self, piece: bytes) -> bool:
        upload = self._asked.upload
        if upload is None:
            return False
        try:
            upload.feed(piece)
        except (Refusal, StoreFailed) as error:
            self._exchange.end(*_reason(error))
        return True

    def body_arrived(self, body: bytes) -> None:
        if self._asked.upload is not None and body:
            self.body_piece(body)
        call = self._exchange.call
        if not call.ended:
            call.received(time.monotonic())
            self._exchange.reset_timer()
            self._body.set_result(body)

    def pause_engine(self) -> None:
        self._writable.clear()

    def resume_engine(self) -> None:
        self._writable.set()

    def _pause(self, on: bool) -> None:
        """An upload comes faster than it can be stored: the one case in which a client is not read, for moments."""
        transport = self._connection.transport
        if transport.is_closing() or (on and self._exchange.call.ended):
            return
        with contextlib.suppress(RuntimeError):  # it is so already
            if on:
                transport.pause_reading()
            else:
                transport.resume_reading()

    # The answer

    async def _run(self, ask: Ask | None, value: Json) -> None:
        exchange, asked = self._exchange, self._asked
        try:
            asked.body = await self._body
            answer = await (self._desk.answer(asked) if ask is None else self._desk.defer(asked, ask, value))
            await self._give(answer)
        except (Refusal, StoreFailed) as error:
            exchange.task = None  # it ends with the call
            if not self._ask_engine(error):
                exchange.end(*_reason(error))
        except Exception as error:
            exchange.task = None
            exchange.fault(error)
        finally:
            if asked.upload is not None:
                asked.upload.close()

    def _ask_engine(self, error: Refusal | StoreFailed) -> bool:
        """There is no such thing here: whether the engine is asked for it."""
        exchange = self._exchange
        missing = isinstance(error, Refusal) and error.reason is reasons.NOT_FOUND
        if not missing or not exchange.api.engine_may_have:
            return False
        try:
            question = AboutResponse(exchange, exchange.gateway.kept_responses)
        except Refusal:
            return False
        self._connection.exchange = question
        question.ask(self._asked.body)
        return True

    async def _give(self, answer: Answer) -> None:
        exchange = self._exchange
        if answer.pieces is None:
            reply.made(exchange, answer.status, answer.content_type, answer.headers, answer.body)
        else:
            exchange.listens = answer.content_type == EVENT_STREAM
            exchange.call.clock = UNLIMITED if exchange.listens else exchange.call.clock
            exchange.reset_timer()
            exchange.call.stream = exchange.listens
            reply.begin_made(exchange, answer.status, answer.content_type, answer.headers)
            self._connection.flush()
            if not self._head_only:
                async for piece in answer.pieces:
                    await self._writable.wait()
                    self._connection.send(piece)
            exchange.call.client_has_all = True
        exchange.task = None
        exchange.end(reasons.COMPLETED)


def _reason(error: Refusal | StoreFailed) -> tuple[Reason, str]:
    return (error.reason, error.detail) if isinstance(error, Refusal) else (reasons.NO_JOBS, str(error))
