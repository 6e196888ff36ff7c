"""JSON request bodies: decoded under guard, changed with as little disturbance as possible.

The gateway and the engine must read the same thing, so whatever two parsers may read differently (duplicate keys,
NaN, lone surrogates) is refused. `orjson` refuses most of it; duplicate keys are found by counting.
"""

from __future__ import annotations

from typing import Any

import orjson

from hangup.core import reasons
from hangup.errors import Refusal


def decode(body: bytes, elements_max: int) -> dict[str, Any]:
    """The body's object; Refusal says what is wrong with it."""
    if len(body) > elements_max:
        _check_size(body, elements_max)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(reasons.BAD_JSON, f"The body is not valid JSON: {error}.") from None
    if type(value) is not dict:
        raise Refusal(reasons.BAD_JSON, "The body must be a JSON object.")
    # What comes out again as it went in has lost no key on the way; else they are counted.
    if orjson.dumps(value) != body and _structure(body).count(b":") != _count_keys(value):
        raise Refusal(reasons.BAD_JSON, "The body has an object with the same key twice.")
    return value


def _check_size(body: bytes, elements_max: int) -> None:
    structure = _structure(body)
    if structure.count(b",") + structure.count(b"[") + structure.count(b"{") > elements_max:
        raise Refusal(reasons.BAD_JSON, f"The body has more than {elements_max} values.")


def _structure(body: bytes) -> bytes:
    """The body without its strings, all at C speed: only brackets, commas, colons and numbers remain."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(body.split(b'"')[::2])


def _count_keys(value: Any) -> int:
    """How many key-value pairs there are, at any depth; fewer than colons in the text means a key came twice."""
    count, stack = 0, [value]
    while stack:
        item = stack.pop()
        if type(item) is dict:
            count += len(item)
            stack.extend(v for v in item.values() if type(v) is dict or type(v) is list)
        else:
            stack.extend(v for v in item if type(v) is dict or type(v) is list)
    return count


def with_fields(body: bytes, value: dict[str, Any], changes: dict[str, Any]) -> bytes:
    """The body with top-level fields set; all else stays byte for byte where the fields are new."""
    if not changes:
        return body
    if not value or not changes.keys().isdisjoint(value):
        return orjson.dumps({**value, **changes})
    start = body.index(b"{") + 1
    return body[:start] + orjson.dumps(changes)[1:-1] + b"," + body[start:]
