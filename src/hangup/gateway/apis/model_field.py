"""Finds the model in a request that is not parsed for anything else: embeddings, audio, passed-on paths."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs, quote

import orjson

FIRST_IN_JSON: Final = re.compile(rb'\s*\{\s*"model"\s*:\s*"([^"\\]+)"')  # where most clients put it
_IN_JSON: Final = re.compile(rb'"model"\s*:\s*"((?:[^"\\]|\\.)*)"')
_IN_FORM: Final = re.compile(rb'name="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)\r\n', re.IGNORECASE)
_IN_QUERY: Final = re.compile(rb"([?&]model=)[^&]*")
_FORM_BYTES: Final = 64 * 1024  # searched at both ends of a form; the file between them is not
_GLANCE_BYTES: Final = 4 * 1024  # read at each end of a body for the log
_READ_BYTES_MAX: Final = 256 * 1024  # a larger body is searched, not parsed: that takes a hundredth of the time


def find(body: bytes, content_type: bytes, query: bytes = b"") -> str:
    """Return the model's name; "" if there is none, or no certain one."""
    if body and content_type.lower().startswith(b"multipart/form-data"):
        found = _in_form(body)
        return found[1].decode("utf-8", "replace") if found is not None else ""
    if body:
        return _in_json(body)
    return parse_qs(query.removeprefix(b"?").decode("latin-1")).get("model", [""])[0] if b"model=" in query else ""


def glance(body: bytes, content_type: bytes, query: bytes = b"") -> str:
    """Return the model's name for the log and the metrics: the first one at either end of JSON, which is not parsed for it."""
    if body[:1] != b"{":
        return find(body, content_type, query)
    found = _IN_JSON.search(body, 0, _GLANCE_BYTES)
    if found is None and len(body) > _GLANCE_BYTES:
        found = _IN_JSON.search(body, max(len(body) - _GLANCE_BYTES, _GLANCE_BYTES))
    if found is None:
        return ""
    name = found[1]
    return name.decode("utf-8", "replace") if b"\\" not in name else str(_loads(b'"%b"' % name) or "")


def _in_form(body: bytes) -> re.Match[bytes] | None:
    found = _IN_FORM.search(body, 0, _FORM_BYTES)
    return found or _IN_FORM.search(body, max(len(body) - _FORM_BYTES, 0))


def _in_json(body: bytes) -> str:
    found = _IN_JSON.search(body)
    if found is None:
        return ""
    if len(body) <= _READ_BYTES_MAX:
        value = _loads(body)
        name = value.get("model") if isinstance(value, dict) else None
        return name if isinstance(name, str) else ""
    if _IN_JSON.search(body, found.end()) is not None:
        return ""  # one of them is in a nested object
    name = _loads(b'"%b"' % found[1])
    return name if isinstance(name, str) else ""


def replace(body: bytes, content_type: bytes, name: str) -> bytes:
    """Replace the model in a body in which `find` found one."""
    is_form = content_type.lower().startswith(b"multipart/form-data")
    found = _in_form(body) if is_form else _IN_JSON.search(body)
    if found is None:
        return body
    if is_form:
        return body[: found.start(1)] + name.encode() + body[found.end(1) :]
    if _IN_JSON.search(body, found.end()) is not None:
        value = _loads(body)
        return orjson.dumps({**value, "model": name}) if isinstance(value, dict) else body
    return body[: found.start(1) - 1] + orjson.dumps(name) + body[found.end(1) + 1 :]


def in_query(query: bytes, name: str) -> bytes:
    """Replace the model in a query."""
    return _IN_QUERY.sub(lambda found: found[1] + quote(name, safe="").encode("ascii"), query, count=1)


def _loads(text: bytes) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
