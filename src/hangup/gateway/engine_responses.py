"""Responses that engines keep themselves (`/v1/responses/{id}`): which backend made which, and for whom.

An id that is not known, from before a restart or beyond the bound, is asked for in turn.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import NamedTuple

from hangup.core import reasons
from hangup.core.call import Call
from hangup.errors import Refusal
from hangup.gateway.apis.base import Json

_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_.:-]{1,128})"')
_LOOK_BYTES = 4096  # the id stands at the beginning of an answer, and in a stream's first event


class ResponseOrigin(NamedTuple):
    backend: str
    tenant: str


class EngineResponses:
    def __init__(self) -> None:
        self._makers: OrderedDict[str, ResponseOrigin] = OrderedDict()

    def note(self, call: Call, beginning: bytes, most: int) -> None:
        """Looks for the id in the first bytes of an engine's answer to `/v1/responses`."""
        found = _ID.search(beginning, 0, _LOOK_BYTES)
        if found is not None:
            self._makers[found[1].decode("ascii")] = ResponseOrigin(call.backend, call.tenant)
            while len(self._makers) > most:
                self._makers.popitem(last=False)

    def home(self, value: Json, tenant: str) -> str:
        """Names the backend that has what a request continues, if that is known."""
        before = value.get("previous_response_id")
        return self.maker(before, tenant) if type(before) is str else ""

    def maker(self, id: str, tenant: str) -> str:
        """Names the backend that made it, if that is known. Nobody sees one of another tenant."""
        origin = self._makers.get(id)
        if origin is None:
            return ""
        if origin.tenant != tenant:
            raise Refusal(reasons.NOT_FOUND, f"There is no response {id[:80]!r}.")
        return origin.backend
