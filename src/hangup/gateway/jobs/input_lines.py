"""Checks all lines of a batch's input file before the first one runs, and reports problems with their line numbers."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from hangup.config import JobLimits
from hangup.core import reasons
from hangup.errors import Refusal
from hangup.gateway.apis.base import Api
from hangup.gateway.apis.routes import Router
from hangup.gateway.http import jsonbody
from hangup.gateway.jobs.http_messages import Json
from hangup.gateway.store.jobs import NewItem

_PROBLEMS_MAX = 50  # reported per file
_ID_CHARS_MAX = 512


class LineProblem(Exception):
    """Why a line is invalid, in the terms of OpenAI's batch errors."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class InputLines:
    """Turns an input file, fed in chunks, into items; collects problems in `problems`."""

    def __init__(self, endpoint: str, router: Router, limits: JobLimits) -> None:
        self.problems: list[Json] = []
        self.count = 0  # lines that are not blank
        self._endpoint = endpoint
        self._limits = limits
        self._rest = b""
        self._number = 0
        self._seen: set[int] = set()  # hashes of custom ids, to save memory
        route = router.find(endpoint)
        self._api = route.api if route is not None and "POST" in route.methods else None

    def feed(self, piece: bytes) -> list[NewItem]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > self._limits.body_bytes_max:
            self._number += 1
            self._note(LineProblem("line_too_long", f"The line is longer than {self._limits.body_bytes_max} bytes."))
            raise StopReading
        return list(self._items(lines))

    def finish(self) -> list[NewItem]:
        items = list(self._items([self._rest]))
        if not self.count and not self.problems:
            self.problems.append({"code": "empty_file", "message": "The file has no requests.", "line": None, "param": None})
        return items

    def _items(self, lines: list[bytes]) -> Iterator[NewItem]:
        for line in lines:
            self._number += 1
            if not line.strip():
                continue
            self.count += 1
            if self.count > self._limits.batch_items_max:
                self._note(LineProblem("too_many_requests", f"A batch has at most {self._limits.batch_items_max} requests."))
                raise StopReading
            try:
                yield self._item(line)
            except LineProblem as problem:
                self._note(problem)

    def _item(self, line: bytes) -> NewItem:
        try:
            if len(line) > self._limits.json_elements_max:
                jsonbody.counted(line, self._limits.json_elements_max)  # before it is parsed, which would delay every call
            value = orjson.loads(line)
        except Refusal as refusal:
            raise LineProblem("invalid_request", str(refusal), "body") from None
        except orjson.JSONDecodeError as error:
            raise LineProblem("invalid_json_line", f"This line is not valid JSON: {error}.") from None
        if type(value) is not dict:
            raise LineProblem("invalid_json_line", "This line is not a JSON object.")
        custom_id, url, body = value.get("custom_id"), value.get("url"), value.get("body")
        if type(custom_id) is not str or not 0 < len(custom_id) <= _ID_CHARS_MAX:
            text = f"'custom_id' must be a string of 1 to {_ID_CHARS_MAX} characters."
            raise LineProblem("missing_required_parameter", text, "custom_id")
        if value.get("method") != "POST":
            raise LineProblem("invalid_method", "'method' must be POST.", "method")
        if url != self._endpoint:
            raise LineProblem("mismatched_endpoint", f"'url' must be the batch's endpoint, {self._endpoint}.", "url")
        if type(body) is not dict:
            raise LineProblem("missing_required_parameter", "'body' must be an object.", "body")
        if hash(custom_id) in self._seen:
            raise LineProblem("duplicate_custom_id", f"Duplicate custom_id {custom_id[:80]!r}.", "custom_id")
        self._seen.add(hash(custom_id))
        return NewItem(custom_id, self._endpoint, self._checked(line, body))

    def _checked(self, line: bytes, body: Json) -> bytes:
        if body.get("stream"):
            raise LineProblem("invalid_request", "A batch cannot stream: remove 'stream'.", "body.stream")
        if body.get("background"):
            raise LineProblem(
                "invalid_request", "Batches always run in the background: remove 'background'.", "body.background"
            )
        try:
            jsonbody.check_depth(line, body, self._limits.json_depth_max)
            written = orjson.dumps(body)
            check(self._api, self._endpoint, written, body, self._limits)
        except Refusal as refusal:
            raise LineProblem("invalid_request", str(refusal), "body") from None
        return written

    def _note(self, problem: LineProblem) -> None:
        self.problems.append({"code": problem.code, "message": str(problem), "line": self._number, "param": problem.param})
        if len(self.problems) >= _PROBLEMS_MAX:
            raise StopReading


class StopReading(Exception):
    """Raised to stop reading: the rest of the file does not matter."""


def check(api: Api | None, path: str, written: bytes, value: Json, limits: JobLimits) -> None:
    """Raise if the gateway would refuse the request when the item runs."""
    if api is None:
        raise Refusal(reasons.BAD_FIELD, f"Unknown path {path}.")
    if len(written) > limits.body_bytes_max:
        raise Refusal(reasons.BODY_TOO_LARGE)
    if len(written) > limits.json_elements_max:
        jsonbody.counted(written, limits.json_elements_max)
    if api.generates:
        api.read(path, value, limits, assemble=True)
