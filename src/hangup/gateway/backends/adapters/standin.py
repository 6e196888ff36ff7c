"""hangup's own fake engine (`hangup standin`), which knows calls by our key."""

from __future__ import annotations

import orjson

from hangup.core.reaper import EngineStatus
from hangup.gateway.backends.adapters.base import Abort, EngineAdapter, Seen, number


class StandInAdapter(EngineAdapter):
    name = "standin"
    order = 10
    title = "the built-in stand-in engine"
    stops_by = "abort by id, closing the connection"
    grace_s = 2.0
    poll_s = 0.05
    status_path = "/standin/stats"
    running_metric = "standin_running"
    tokens_metric = "standin_tokens_total"
    keyed_by = "header"

    def recognises(self, models: Seen) -> bool:
        return models.server.startswith("hangup-standin")

    def abort(self, key: str) -> Abort:
        return Abort("/standin/abort", orjson.dumps({"id": key}))

    def read_status(self, answer: Seen) -> EngineStatus | None:
        table = answer.table
        if "running" not in table:
            return None
        return EngineStatus(number(table["running"]), number(table["waiting"]), tokens=number(table["tokens"]))
