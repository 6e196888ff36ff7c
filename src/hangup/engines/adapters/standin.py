"""hangup's own stand-in engine (`hangup standin`), which knows calls by our id."""

from __future__ import annotations

import orjson

from hangup.engines.adapters.base import Abort, Adapter


class StandIn(Adapter):
    name = "standin"
    title = "the built-in stand-in engine; stopped by id and by cutting its connection"

    def recognises(self, server: str, models: bytes) -> bool:
        return server.startswith("hangup-standin")

    def abort(self, call_id: str) -> Abort:
        return Abort("/standin/abort", orjson.dumps({"id": call_id}))
