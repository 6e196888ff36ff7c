"""Requests to the job APIs, which the gateway answers itself, and the responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import orjson

from hangup.config import JobLimits
from hangup.core import reasons
from hangup.errors import Refusal
from hangup.gateway.http import jsonbody
from hangup.gateway.jobs.upload import Upload, is_number

Json = dict[str, Any]
# Client headers that are stored and sent with the calls of its items; a key is never stored.
_REPLAYED_HEADERS = (b"anthropic-version", b"anthropic-beta", b"openai-organization", b"openai-project")


@dataclass(slots=True)
class JobHttpRequest:
    """A request to a job API, with the tenant and its limits."""

    method: str
    path: str
    query: Mapping[str, str]
    fields: Mapping[bytes, bytes]  # headers
    tenant: str
    limits: JobLimits
    base_url: str  # the gateway's address, as the client knows it
    body: bytes = b""
    upload: Upload | None = None

    def json(self) -> Json:
        value: Json = jsonbody.decode(self.body, None, self.limits.json_elements_max, self.limits.json_depth_max)
        return value

    def query_number(self, name: str, default: int, least: int, most: int) -> int:
        given = self.query.get(name)
        if given is None:
            return default
        if not is_number(given) or not least <= int(given) <= most:
            raise Refusal(reasons.BAD_FIELD, f"'{name}' must be a number from {least} to {most}.")
        return int(given)

    def replayed_headers(self) -> dict[str, str]:
        return {name.decode(): self.fields[name].decode("latin-1") for name in _REPLAYED_HEADERS if name in self.fields}


@dataclass(slots=True)
class JobHttpResponse:
    """A response with a body, or with `pieces` that are generated while the client reads."""

    body: bytes = b""
    status: int = 200
    content_type: bytes = b"application/json"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    pieces: AsyncIterator[bytes] | None = None

    @classmethod
    def json(cls, value: Json | orjson.Fragment, status: int = 200, **headers: str) -> JobHttpResponse:
        pairs = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        return cls(orjson.dumps(value), status, headers=pairs)


def parse_query(query: bytes) -> dict[str, str]:
    return dict(parse_qsl(query.removeprefix(b"?").decode("latin-1"), keep_blank_values=True))
