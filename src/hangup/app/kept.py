"""Responses that engines keep themselves (`/v1/responses/{id}`): which backend made which, and for whom.

An id that is not known, from before a restart or beyond the bound, is asked for in turn.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from hangup.app.question import Question
from hangup.core import reasons
from hangup.engines.backend import Backend
from hangup.errors import Refusal

if TYPE_CHECKING:
    from hangup.app.exchange import Exchange

_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_.:-]{1,128})"')
_LOOK_BYTES = 4096  # the id stands at the beginning of an answer, and in a stream's first event
_PATH = "/v1/responses/"


class Maker(NamedTuple):
    backend: str
    tenant: str


class KeptResponses:
    def __init__(self) -> None:
        self._makers: OrderedDict[str, Maker] = OrderedDict()

    def note(self, exchange: Exchange, beginning: bytes, most: int) -> None:
        """The first bytes of an engine's answer to `/v1/responses`."""
        found = _ID.search(beginning, 0, _LOOK_BYTES)
        if found is not None and exchange.errand is None:  # those of jobs have names of ours
            self._makers[found[1].decode("ascii")] = Maker(exchange.call.backend, exchange.call.tenant)
            while len(self._makers) > most:
                self._makers.popitem(last=False)

    def maker(self, id: str, tenant: str) -> str:
        """The backend that made it, if that is known. Nobody sees one of another tenant."""
        made = self._makers.get(id)
        if made is None:
            return ""
        if made.tenant != tenant:
            raise Refusal(reasons.NOT_FOUND, f"There is no response {id[:80]!r}.")
        return made.backend


class AboutResponse(Question):
    """A question about a response that is not ours: its maker is asked first."""

    def __init__(self, exchange: Exchange, kept: KeptResponses) -> None:
        assert exchange.head is not None
        id = exchange.head.path.removeprefix(_PATH).partition("/")[0]
        self._maker = exchange.gateway.backends.get(kept.maker(id, exchange.call.tenant))
        super().__init__(exchange)

    def _choose(self, *, last_resort: bool = True) -> Backend | None:
        if self._maker is not None and not self._tried:
            return self._maker
        return super()._choose(last_resort=last_resort)
