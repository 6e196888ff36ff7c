"""What can go wrong with an engine's answer or with the application itself, and what the client is told about it.

An upstream's error keeps its meaning: its status, its body and its `Retry-After` reach the client, whether the upstream was
asked through httpx, aiohttp, requests or an SDK. (Refused credentials are an exception: they are not the client's.) SDKs are
recognised by the attributes of their exceptions, so none of them is imported here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hangup.errors import HangupError

BODY_BYTES_MAX = 1 << 20  # of an upstream's error; a longer one is replaced by our own
_PASSED_HEADERS = {"retry-after", "retry-after-ms", "x-should-retry", "x-request-id", "request-id"}
_PASSED_PREFIXES = ("x-ratelimit-", "ratelimit", "anthropic-ratelimit-")
_BAD_GATEWAY = 502
_CREDENTIALS_REFUSED = {401, 403, 407}


class ApplicationFault(HangupError, TypeError):
    """The application made a mistake: what it passed as a source, or a chunk, cannot be used."""


class UpstreamError(HangupError):
    """The upstream's answer is an error: an HTTP response, passed as a source, whose status is not 2xx."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"the upstream answered {status}")
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """What the client gets instead of an answer. A body that is neither text nor bytes is sent as JSON."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 599:
            raise ValueError(f"the status of an ErrorAnswer must be between 400 and 599; got {self.status!r}")

    def encoded(self) -> tuple[list[tuple[str, str]], bytes]:
        """Return headers and body as they are sent."""
        given = {name.lower(): value for name, value in self.headers.items()}
        content_type = "application/json"
        if isinstance(self.body, bytes):
            body = self.body
        elif isinstance(self.body, str):
            body, content_type = self.body.encode(), "text/plain; charset=utf-8"
        else:
            body = json.dumps(self.body, ensure_ascii=False).encode()
        given.setdefault("content-type", content_type)
        given["content-length"] = str(len(body))
        return list(given.items()), body

    def event_body(self) -> dict[str, Any] | None:
        """Return the body as an object for an error event in a stream; None if it is none."""
        value = self.body
        if isinstance(value, (bytes, str)):
            try:
                value = json.loads(value)
            except ValueError:
                return None
        return value if isinstance(value, dict) else None


OnError = Callable[[Exception], ErrorAnswer | None]


def answer_of(error: BaseException) -> ErrorAnswer | None:
    """Return the answer that an upstream's error stands for; None if the exception is not an upstream's answer.

    A redirect is not passed on: it would tell the client an address that is not meant for it. Nor is a 401 or 403: it is about
    the application's key, not the client's, and its body may show part of that key.
    """
    if isinstance(error, UpstreamError):
        if error.status < 400:
            return None
        return _answer(error.status, error.headers, error.body, None)
    response = getattr(error, "response", None)
    if response is None:
        response = getattr(error, "raw_response", None)
    if isinstance(response, dict):
        return _of_botocore(response)
    status = _status_of(error, response)
    body = getattr(error, "body", None)
    if status is None:  # an error event inside a stream has a body and no status of its own
        return ErrorAnswer(_BAD_GATEWAY, _error_object(body)) if isinstance(body, dict) else None
    headers = getattr(response, "headers", None) or getattr(error, "headers", None) or {}
    if _is_aiohttp_answer(error):
        return _answer(status, headers, getattr(error, "text", None), body, is_upstreams=False)
    return _answer(status, headers, _content(response), body)


def _status_of(error: BaseException, response: Any) -> int | None:
    candidates = (getattr(response, "status_code", None), getattr(error, "status_code", None), getattr(error, "status", None))
    return next((status for status in candidates if isinstance(status, int) and 400 <= status <= 599), None)


def _is_aiohttp_answer(error: BaseException) -> bool:
    """Return whether the error is one of `aiohttp.web`'s, which are answers themselves."""
    return type(error).__module__.startswith("aiohttp.web")


def _content(response: Any) -> bytes | None:
    if getattr(response, "_content", None) is False:  # of requests, and not read: its property would block the event loop
        return None
    try:
        content = response.content
    except Exception:  # not read, and closed by now
        return None
    return content if isinstance(content, bytes) else None


def _of_botocore(response: dict[str, Any]) -> ErrorAnswer | None:
    about = response.get("ResponseMetadata") or {}
    status = about.get("HTTPStatusCode")
    if not isinstance(status, int) or not 400 <= status <= 599:
        return None
    error = response.get("Error") or {}
    body = {"message": error.get("Message", f"The engine answered {status}."), "type": error.get("Code", "upstream_error")}
    return _answer(status, about.get("HTTPHeaders") or {}, None, body)


def _answer(status: int, headers: Any, content: bytes | str | None, body: Any, *, is_upstreams: bool = True) -> ErrorAnswer:
    given = headers.items() if hasattr(headers, "items") else ()  # a list of pairs is not understood
    lowered = {str(name).lower(): str(value) for name, value in given}
    passed = {name: value for name, value in lowered.items() if name in _PASSED_HEADERS or name.startswith(_PASSED_PREFIXES)}
    if is_upstreams and status in _CREDENTIALS_REFUSED:
        message = "The engine refused the credentials of this application, which are not yours."
        about = {"message": message, "type": "upstream_error", "code": "upstream_credentials"}
        return ErrorAnswer(_BAD_GATEWAY, {"error": about}, passed)
    if content and len(content) <= BODY_BYTES_MAX:
        if "content-type" in lowered:
            passed["content-type"] = lowered["content-type"]
        return ErrorAnswer(status, content, passed)
    if isinstance(body, dict):
        return ErrorAnswer(status, _error_object(body), passed)
    message = f"The engine answered {status}."
    return ErrorAnswer(status, {"error": {"message": message, "type": "upstream_error", "code": str(status)}}, passed)


def _error_object(body: dict[str, Any]) -> dict[str, Any]:
    """Return the whole object: OpenAI's SDK keeps only what is under `error`."""
    return body if "error" in body else {"error": body}
