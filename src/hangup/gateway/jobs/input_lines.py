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
        self._unfinished = b""
        self._line_number = 0
        self._seen_ids: set[int] = set()  # hashes of custom ids, to save memory
        route = router.find(endpoint)
        self._api = route.api if route is not None and "POST" in route.methods else None

    def feed(self, piece: bytes) -> list[NewItem]:
        *lines, self._unfinished = (self._unfinished + piece).split(b"\n")
        if len(self._unfinished) > self._limits.body_bytes_max:
            self._line_number += 1
            self._add_problem(LineProblem("line_too_long", f"The line is longer than {self._limits.body_bytes_max} bytes."))
            raise StopReading
        return list(self._parse_lines(lines))

    def finish(self) -> list[NewItem]:
        items = list(self._parse_lines([self._unfinished]))
        if not self.count and not self.problems:
            self.problems.append({"code": "empty_file", "message": "The file has no requests.", "line": None, "param": None})
        return items

    def _parse_lines(self, lines: list[bytes]) -> Iterator[NewItem]:
        for line in lines:
            self._line_number += 1
            if not line.strip():
                continue
            self.count += 1
            if self.count > self._limits.batch_items_max:
                self._add_problem(
                    LineProblem("too_many_requests", f"A batch has at most {self._limits.batch_items_max} requests.")
                )
                raise StopReading
            try:
                yield self._parse_line(line)
            except LineProblem as problem:
                self._add_problem(problem)

    def _parse_line(self, line: bytes) -> NewItem:
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
        if type(custom_id) is not str or not 0 < len(custom_id) <= _ID_CHARS_MAX or "\0" in custom_id:
            text = f"'custom_id' must be a string of 1 to {_ID_CHARS_MAX} characters, without NUL."
            raise LineProblem("missing_required_parameter", text, "custom_id")
        if value.get("method") != "POST":
            raise LineProblem("invalid_method", "'method' must be POST.", "method")
        if url != self._endpoint:
            raise LineProblem("mismatched_endpoint", f"'url' must be the batch's endpoint, {self._endpoint}.", "url")
        if type(body) is not dict:
            raise LineProblem("missing_required_parameter", "'body' must be an object.", "body")
        if hash(custom_id) in self._seen_ids:
            raise LineProblem("duplicate_custom_id", f"Duplicate custom_id {custom_id[:80]!r}.", "custom_id")
        self._seen_ids.add(hash(custom_id))
        return NewItem(custom_id, self._endpoint, self._encode_body(line, body))

    def _encode_body(self, line: bytes, body: Json) -> bytes:
        if body.get("stream"):
            raise LineProblem("invalid_request", "A batch cannot stream: remove 'stream'.", "body.stream")
        if body.get("background"):
            raise LineProblem(
                "invalid_request", "Batches always run in the background: remove 'background'.", "body.background"
            )
        try:
            jsonbody.check_depth(line, body, self._limits.json_depth_max)
            encoded = orjson.dumps(body)
            check_request(self._api, self._endpoint, encoded, body, self._limits)
        except Refusal as refusal:
            raise LineProblem("invalid_request", str(refusal), "body") from None
        return encoded

    def _add_problem(self, problem: LineProblem) -> None:
        self.problems.append({"code": problem.code, "message": str(problem), "line": self._line_number, "param": problem.param})
        if len(self.problems) >= _PROBLEMS_MAX:
            raise StopReading


class StopReading(Exception):
    """Raised to stop reading: the rest of the file does not matter."""


def check_request(api: Api | None, path: str, encoded: bytes, value: Json, limits: JobLimits) -> None:
    """Raise if the gateway would refuse the request when the item runs."""
    if api is None:
        raise Refusal(reasons.BAD_FIELD, f"Unknown path {path}.")
    if len(encoded) > limits.body_bytes_max:
        raise Refusal(reasons.BODY_TOO_LARGE)
    if len(encoded) > limits.json_elements_max:
        jsonbody.counted(encoded, limits.json_elements_max)
    if api.generates:
        api.read(path, value, limits, assemble=True)
