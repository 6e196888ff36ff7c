"""Remembers which backend made which stored response (`/v1/responses/{id}`), and for which tenant.

For an unknown id, from before a restart or beyond the limit, the backends are queried one after the other.
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
_LOOK_BYTES = 4096  # the id is at the beginning of an answer, and in a stream's first event


class ResponseOrigin(NamedTuple):
    backend: str
    tenant: str


class EngineResponses:
    def __init__(self) -> None:
        self._makers: OrderedDict[str, ResponseOrigin] = OrderedDict()

    def note(self, call: Call, beginning: bytes, most: int) -> None:
        """Remember the id in the first bytes of an engine's answer to `/v1/responses`, if it has one."""
        found = _ID.search(beginning, 0, _LOOK_BYTES)
        if found is not None:
            self._makers[found[1].decode("ascii")] = ResponseOrigin(call.backend, call.tenant)
            while len(self._makers) > most:
                self._makers.popitem(last=False)

    def home(self, value: Json, tenant: str) -> str:
        """Return the backend with the response that a request continues; "" if it is unknown."""
        before = value.get("previous_response_id")
        return self.maker(before, tenant) if type(before) is str else ""

    def maker(self, id: str, tenant: str) -> str:
        """Return the backend that made a response; "" if it is unknown. Raise if it belongs to another tenant."""
        origin = self._makers.get(id)
        if origin is None:
            return ""
        if origin.tenant != tenant:
            raise Refusal(reasons.NOT_FOUND, f"There is no response {id[:80]!r}.")
        return origin.backend
