"""What the gateway must know of an engine beyond HTTP: one adapter per kind of engine.

An adapter only describes: which bytes to send, and what an answer says. Sending, waiting and judging is done elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from hangup.core.reaper import EngineStatus, Slot
from hangup.gateway.http.head import Headers

Json = dict[str, Any]
_MOST = 2.0**53  # what an engine may count to


@dataclass(frozen=True, slots=True)
class Abort:
    """The request that tells an engine to stop one call."""

    path: str
    body: bytes = b""


class Seen(NamedTuple):
    """What a backend answered to one GET; status 0 when it did not answer."""

    status: int
    server: str
    body: bytes

    def json(self) -> Any:
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None

    @property
    def table(self) -> Json:
        """The body as an object; empty if it is none."""
        value = self.json() if self.status == 200 else None
        return value if isinstance(value, dict) else {}

    @property
    def rows(self) -> list[Json]:
        """The objects of the body, if it is a list, or of the list `data` in it, as in an answer to GET /v1/models."""
        value = self.json() if self.status == 200 else None
        value = value.get("data") if isinstance(value, dict) else value
        return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


Get = Callable[[str], Awaitable[Seen]]


@dataclass(slots=True)
class Facts:
    """What one backend turned out to be able to do."""

    version: str = ""
    slots: int = 0  # calls at a time; 0: it does not say
    context: int = 0  # tokens
    kv_tokens: int = 0
    can_abort: bool = False
    can_tell: bool = False  # what it runs
    at_work: tuple[Slot, ...] = ()  # its slots as they were when it was asked, where calls are pinned to slots
    texts_in_pieces: bool | None = None  # in its own API's streams; else each event has all the text so far. None: not told
    hints: tuple[str, ...] = ()


class EngineAdapter:
    """A kind of engine. The defaults are right for one that stops when its connection is cut, and tells nothing."""

    name = ""
    title = ""
    # Which kind is tried first, and listed first, when a backend could be several; equal ones go by name.
    order = 50
    # A hosted API is known by how the name of its host ends.
    hosts: tuple[str, ...] = ()
    # Its list of models does not identify it: `inspect` asks its own pages when no other kind was recognised.
    inspect_unknown = False
    stops_by = "closing the connection"
    # Headers that must not reach it, in lower case.
    stripped_headers: frozenset[bytes] = frozenset([b"x-conversation-id"])
    # How long its work may run on after a call's end, at its usual best.
    grace_s = 5.0
    # How old the figures may be that it gives.
    lag_s = 0.0
    counts_steps = False  # its figures are those of the last step that is over: what has no first token may not be in them
    # Pause between two questions what it runs.
    poll_s = 0.25
    # The same while it is only about calls that were streaming, which some engines let go of whatever they are asked.
    quick_poll_s: float | None = None
    # Questions keep it from noticing that a silent client has left: it gets `poll_s` to do so before the first one.
    disturbed = False
    # Where it cannot be asked: how long a place is kept after a hang-up.
    blind_hold_s = 0.25
    # Somebody else's service: it has no slots, it refuses what is too much.
    hosted = False
    # Where it is asked; "" if it cannot be.
    status_path = ""
    # Where it gets the key by which it is told to stop a call: the "header" X-Request-Id, a field of the "body", or "" nowhere.
    keyed_by = ""
    # Its abort must find the connection open.
    abort_first = False
    # Calls can be given a slot of their own.
    pins_slots = False

    # The field, by the API's name, in which a maximum of output tokens may be set that the client did not name. That must be
    # harmless: the engine's own default is no end, or the end of its context; a maximum beyond that is no error; and an
    # operator's lower one still holds. Where this cannot be known, nothing is set: tokens are counted on the way.
    maximum_fields: Mapping[str, str] = {}
    # How far it may go beyond the maximum that it was told, and be well.
    late_tokens = 0

    # The APIs that it speaks for sure (the name before the dot in logs); None where that is not known.
    apis: frozenset[str] | None = None
    # "name:tag" is asked of whoever lists "name".
    tagged_models = False
    # At least so long between two questions which models it has.
    models_rest_s = 0.0
    # What must be sent along when it is asked which models it has.
    models_headers: Headers = []

    # Where it says which call is in which slot, if it chooses that by itself; "" if nowhere.
    slots_path = ""

    # It says which calls it has, by our key: exact, whoever else uses it.
    names_calls = False

    def recognises(self, models: Seen) -> bool:
        """Whether a backend is of this kind for sure, from its answer to GET /v1/models."""
        return False

    async def inspect(self, get: Get) -> Facts | None:
        """What this backend can do, asked with GET alone; None if it is of another kind after all."""
        return Facts(can_abort=self.abort("probe") is not None, can_tell=bool(self.status_path))

    def fields(self, key: str, slot: int | None) -> Json:
        """What is set in a generation's body, so that the engine knows the call by our key or in our slot."""
        return {}

    def maximum(self, api: str, tokens: int) -> Json:
        """What is set in a generation's body when its client named no maximum."""
        name = self.maximum_fields.get(api)
        return {name: tokens} if name is not None else {}

    def abort(self, key: str) -> Abort | None:
        """How to stop a call explicitly, besides cutting its connection; None where the engine has no such way."""
        return None

    def key_headers(self, key: bytes, anthropic: bool) -> bytes:
        """How a key of ours is sent; `anthropic`: with a request in Anthropic's API."""
        bearer = b"authorization: Bearer %b\r\n" % key
        return bearer + b"x-api-key: %b\r\n" % key if anthropic else bearer

    def read_models(self, answer: Seen) -> list[Json] | None:
        """The models that it has, adapters (LoRA) among them, from its answer to GET /v1/models; None if that is no list."""
        value = answer.json() if answer.status == 200 else None
        rows = value.get("data") if isinstance(value, dict) else None
        if not isinstance(rows, list):
            return None
        return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]

    def model_names(self, row: Json) -> tuple[str, ...]:
        """The names that a listed model can be asked for by."""
        return (row["id"],)

    def lists_all(self, rows: list[Json]) -> bool:
        """Whether it refuses whatever is not in its list: most engines answer to any name, or to more than they list."""
        return False

    def complete(self, answer: Json) -> None:
        """Adds what a whole answer of this engine has and its streams leave out; only ever null."""

    def read_status(self, answer: Seen) -> EngineStatus | None:
        """What it runs, from its answer to GET `status_path`; None if that cannot be read."""
        return None

    def read_slots(self, answer: Seen) -> dict[str, int]:
        """The slot of each call that has one, by the engine's name for the call, from its answer to GET `slots_path`."""
        return {}


def gauges(body: bytes) -> dict[str, float]:
    """Prometheus' text, by metric name, summed over labels."""
    found: dict[str, float] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        if line.startswith("#") or " " not in line:
            continue
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        try:
            value = float(rest.rpartition("} ")[2].split()[0])
        except (ValueError, IndexError):
            continue
        if abs(value) <= _MOST:  # neither infinite nor no number at all
            found[name] = found.get(name, 0.0) + value
    return found


def counted(answer: Seen, running: str, waiting: str, tokens: str = "") -> EngineStatus | None:
    """A status out of Prometheus gauges."""
    found = gauges(answer.body) if answer.status == 200 else {}
    if running not in found:
        return None
    told = int(found[tokens]) if tokens in found else None
    return EngineStatus(int(found[running]), int(found.get(waiting, 0)), tokens=told)


def label(body: bytes, metric: str, name: str) -> str:
    """The value of a label of a metric; "" if there is none."""
    for line in body.decode("utf-8", "replace").splitlines():
        if line.startswith(metric + "{"):
            found = re.search(rf'[{{,]{name}="([^"]*)"', line)
            return found[1] if found is not None else ""
    return ""


def number(text: object) -> int:
    """A whole number that an engine told, or 0."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    return int(text) if isinstance(text, (int, float)) and abs(text) <= _MOST else 0
