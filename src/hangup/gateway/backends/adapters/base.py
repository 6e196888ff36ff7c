"""The base class of adapters, which describe what the gateway must know of an engine beyond HTTP.

An adapter only describes: which bytes to send, and what an answer means. Other modules send, wait and decide.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from hangup.core.reaper import EngineStatus, Slot
from hangup.declared import Declared
from hangup.gateway.http.head import Headers

Json = dict[str, Any]
_MOST = 2.0**53  # the largest count that an engine may report


@dataclass(frozen=True, slots=True)
class Abort:
    """A request that tells an engine to stop one call."""

    path: str
    body: bytes = b""


class Seen(NamedTuple):
    """A backend's answer to one GET; status 0 if it did not answer."""

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
        """The body as an object; empty if the body is not an object."""
        value = self.json() if self.status == 200 else None
        return value if isinstance(value, dict) else {}

    @property
    def rows(self) -> list[Json]:
        """The objects in the body, if it is a list, or in its list `data`, as in an answer to GET /v1/models."""
        value = self.json() if self.status == 200 else None
        value = value.get("data") if isinstance(value, dict) else value
        return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


Get = Callable[[str], Awaitable[Seen]]


@dataclass(slots=True)
class Facts:
    """What one backend is able to do, as found by inspection."""

    version: str = ""
    slots: int = 0  # concurrent calls; 0: not reported
    context: int = 0  # tokens
    kv_tokens: int = 0
    can_abort: bool = False
    reports_status: bool = False  # it reports what it runs
    at_work: tuple[Slot, ...] = ()  # state of its slots at inspection time, where calls are pinned to slots
    texts_in_pieces: bool | None = None  # in its own streaming API: events have deltas, not all the text. None: unknown
    hints: tuple[str, ...] = ()


class EngineAdapter(metaclass=Declared):
    """A kind of engine. The defaults suit an engine that stops when its connection is cut, and reports nothing."""

    name = ""
    title = ""
    # When a backend could be of several kinds, the lowest order is tried and listed first; ties go by name.
    order = 50
    # Suffixes of host names by which a hosted API is recognised.
    hosts: tuple[str, ...] = ()
    # True if the list of models does not identify this kind: `inspect` then queries the engine's own paths when no other kind
    # matched.
    inspect_unknown = False
    stops_by = "closing the connection"
    # Headers, in lower case, that must not reach the engine.
    stripped_headers: frozenset[bytes] = frozenset([b"x-conversation-id"])
    # How long the engine's work usually outlives a cancelled call, at the most.
    grace_s = 5.0
    # How stale the numbers may be that the engine reports.
    lag_s = 0.0
    counts_steps = False  # it reports the last finished step: calls without a first token may be missing
    # Pause between two status queries.
    poll_s = 0.25
    # The same pause while only calls that were streaming are pending: some engines stop those however often they are polled.
    quick_poll_s: float | None = None
    # True if status queries keep the engine from noticing that a silent client has disconnected: the gateway waits `poll_s`
    # before the first one.
    disturbed = False
    # How long a slot stays reserved after a hang-up if the engine reports no status.
    blind_hold_s = 0.25
    # A third party's service: it has no slots, and refuses calls above its limits.
    hosted = False
    # Path of the status query; "" if there is none.
    status_path = ""
    # Its Prometheus page, and the metrics there of calls that run, calls that wait and tokens computed; "" if it has none. If
    # `status_path` is the same page, the first two are the status.
    metrics_path = "/metrics"
    running_metric = ""
    waiting_metric = ""
    tokens_metric = ""
    # Where the engine gets the key by which a call can be stopped: the "header" X-Request-Id, a field of the "body", or ""
    # nowhere.
    keyed_by = ""
    # An abort only works while the call's connection is open.
    abort_first = False
    # Each call can be assigned a slot.
    pins_slots = False

    # The field, by API name, in which the gateway may set a maximum of output tokens if the client set none. Setting it must be
    # harmless: the engine's own default is unlimited or the end of its context; a larger maximum is no error; and an operator's
    # lower maximum still holds. Where this is not certain the gateway sets nothing and counts tokens as they pass.
    maximum_fields: Mapping[str, str] = {}
    # It reads the keys of a body in any case, as programs in Go do.
    folds_keys = False
    # How many tokens beyond its maximum the engine may generate without being at fault.
    late_tokens = 0

    # The APIs that it certainly serves (in logs, the name before the dot); None if unknown.
    apis: frozenset[str] | None = None
    # A request for "name:tag" goes to a backend that lists "name".
    tagged_models = False
    # Minimum pause between two requests for its list of models.
    models_rest_s = 0.0
    # Headers required in a request for its list of models.
    models_headers: Headers = []

    # Path that says which call is in which slot, if the engine assigns slots itself; "" if there is none.
    slots_path = ""

    # It reports its calls by our key, so that its status is exact no matter who else uses it.
    names_calls = False

    def recognises(self, models: Seen) -> bool:
        """Return True if the answer to GET /v1/models proves that a backend is of this kind."""
        return False

    async def inspect(self, get: Get) -> Facts | None:
        """Find out what this backend can do, with GET requests alone; return None if it is of another kind after all."""
        return Facts(can_abort=self.abort("probe") is not None, reports_status=bool(self.status_path))

    def fields(self, key: str, slot: int | None) -> Json:
        """Return the fields to set in a generation's body, so that the engine knows the call by our key or runs it in our
        slot."""
        return {}

    def maximum(self, api: str, tokens: int) -> Json:
        """Return the fields to set in a generation's body when the client set no maximum of output tokens."""
        name = self.maximum_fields.get(api)
        return {name: tokens} if name is not None else {}

    def abort(self, key: str) -> Abort | None:
        """Return the request that stops a call explicitly, besides cutting its connection; None if the engine has none."""
        return None

    def key_headers(self, key: bytes, anthropic: bool) -> bytes:
        """Return the headers that carry our API key; `anthropic`: the request is for Anthropic's API."""
        bearer = b"authorization: Bearer %b\r\n" % key
        return bearer + b"x-api-key: %b\r\n" % key if anthropic else bearer

    def read_models(self, answer: Seen) -> list[Json] | None:
        """Return the backend's models, LoRA adapters included, from its answer to GET /v1/models; None if that has no list."""
        value = answer.json() if answer.status == 200 else None
        rows = value.get("data") if isinstance(value, dict) else None
        if not isinstance(rows, list):
            return None
        return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]

    def model_names(self, row: Json) -> tuple[str, ...]:
        """Return the names by which clients can request a listed model."""
        return (row["id"],)

    def lists_all(self, rows: list[Json]) -> bool:
        """Return True if the engine refuses every model that it does not list. Most accept any name, or more than they list."""
        return False

    def complete(self, answer: Json) -> None:
        """Add the null fields that this engine's whole answers have and its streams omit."""

    def read_status(self, answer: Seen) -> EngineStatus | None:
        """Return what the engine runs, from its answer to GET `status_path`; None if the answer cannot be read."""
        return counted(answer, self.running_metric, self.waiting_metric)

    def read_slots(self, answer: Seen) -> dict[str, int]:
        """Return the slot of each call that has one, keyed by the engine's id of the call, from its answer to GET
        `slots_path`."""
        return {}


def gauges(body: bytes) -> dict[str, float]:
    """Parse a Prometheus page into values by metric name, summed over labels."""
    found: dict[str, float] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        if line.startswith("#") or " " not in line:
            continue
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        try:
            value = float(rest.rpartition("} ")[2].split()[0])
        except (ValueError, IndexError):
            continue
        if abs(value) <= _MOST:  # neither infinite nor NaN
            found[name] = found.get(name, 0.0) + value
    return found


def counted(answer: Seen, running: str, waiting: str, tokens: str = "") -> EngineStatus | None:
    """Build a status from Prometheus gauges. Name `tokens` only if the engine counts each as it computes it, not at the end of
    a call: a count that stands still means that the engine does."""
    found = gauges(answer.body) if answer.status == 200 else {}
    if not running or running not in found:
        return None
    computed = int(found[tokens]) if tokens in found else None
    return EngineStatus(int(found[running]), int(found.get(waiting, 0)), tokens=computed)


def label(body: bytes, metric: str, name: str) -> str:
    """Return the value of a metric's label; "" if there is none."""
    for line in body.decode("utf-8", "replace").splitlines():
        if line.startswith(metric + "{"):
            found = re.search(rf'[{{,]{name}="([^"]*)"', line)
            return found[1] if found is not None else ""
    return ""


def number(text: object) -> int:
    """Return a value reported by an engine as an integer; 0 if it is not a number."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    return int(text) if isinstance(text, (int, float)) and abs(text) <= _MOST else 0
