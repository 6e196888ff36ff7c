"""Decodes JSON request bodies safely, and changes them with minimal edits.

The gateway and the engine must read the same thing, so anything that two parsers may read differently (duplicate keys, NaN,
lone surrogates) is refused. `orjson` refuses most of it; duplicate keys are found by counting.
"""

from __future__ import annotations

import codecs
import re
from typing import Any, Final

import orjson

from hangup.core import reasons
from hangup.errors import Refusal

_LEVELS_MAX: Final = 254  # of nesting, in an engine's answer: as many as orjson writes
DEPTH_MAX: Final = 200  # orjson reads 1024 levels and writes 254
_COLON: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_ESCAPED: Final = re.compile(rb"\\u00[3-7]")  # a letter, a digit or an underscore, among others
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]|[-+.0-9A-Za-z]++')
_BLANKS: Final = b" \t\r\n"
_NO_BRACKETS: Final = b":,+-.0123456789eEtrufalsn" + _BLANKS  # all bytes that may occur outside strings, apart from brackets
_BRACKETS: Final = b"{}[]"
_CLOSED: Final = re.compile(rb"-{2,}")
_PAIR: Final = re.compile(rb"\{-*\}|\[-*\]")  # brackets with nothing but closed pairs between them
_COUNTED_BYTES: Final = 256 * 1024  # at a time: another thread's turn comes between two of them
_SPACED_BYTES: Final = 64  # of a body: where a client puts spaces behind its colons, one of them is there
_COMPARED_BYTES_MAX: Final = 64 * 1024  # above this, encoding the body again costs more than counting its keys


class _Strings:
    """Separates a JSON text's strings from the rest, piece by piece as it arrives, at C speed."""

    __slots__ = ("_escaped", "_in_string")

    def __init__(self) -> None:
        self._in_string = 0
        self._escaped = False

    @property
    def inside(self) -> bool:
        """True if the text so far ends inside a string."""
        return bool(self._in_string)

    def outside(self, piece: bytes) -> bytes:
        """Return the text outside strings."""
        return self._split(piece)[0]

    def _split(self, piece: bytes) -> tuple[bytes, int]:
        """Return the text outside strings, and the number of quotes."""
        if not piece:
            return b"", 0  # it would end the escape of a preceding backslash
        if self._escaped:
            piece, self._escaped = piece[1:], False
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"")
            self._escaped = piece.endswith(b"\\")
            piece = piece.replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= (len(parts) - 1) & 1
        return outside, len(parts) - 1


class Structure(_Strings):
    """Counts a body's values and keys without parsing it.

    So a body that would take long to parse is refused before it is parsed, and no piece blocks the event loop.
    """

    __slots__ = ("_elements_max", "elements", "keys")

    def __init__(self, elements_max: int) -> None:
        super().__init__()
        self._elements_max = elements_max
        self.elements = 0
        self.keys = 0

    def feed(self, piece: bytes) -> None:
        outside, quotes = self._split(piece)
        self.keys += outside.count(b":")
        self.elements += outside.count(b",") + outside.count(b"[") + outside.count(b"{") + (quotes + 1) // 2
        if self.elements > self._elements_max:
            raise Refusal(reasons.BAD_JSON, f"The body has more than {self._elements_max} values.")


class Brackets(_Strings):
    """Tells, without parsing, whether a JSON text was cut off: then a string or a bracket is open.

    It accepts what only some parsers do, such as NaN: whether the text is valid is not the question.
    """

    __slots__ = ("_begun", "_open")

    def __init__(self) -> None:
        super().__init__()
        self._begun = False
        self._open = 0

    def feed(self, piece: bytes) -> None:
        outside, _ = self._split(piece)
        self._begun = self._begun or not piece.isspace()
        self._open += outside.count(b"{") + outside.count(b"[") - outside.count(b"}") - outside.count(b"]")

    @property
    def closed(self) -> bool:
        return self._begun and not self._in_string and self._open <= 0


class Outline(_Strings):
    """Checks, without parsing, that a text looks like one JSON object or array, so that an engine's large answer can be stored
    as it is.

    Strings end, each bracket is closed by its own kind, nothing follows the first that is closed, there is nothing between them
    that JSON does not have, and all of it is UTF-8. A missing comma goes unnoticed; but no text that passes can be mistaken for
    more than one value, for more than one line, or for a part of the next.
    """

    __slots__ = ("_bad", "_begun", "_last", "_open", "_utf8", "values")

    def __init__(self) -> None:
        super().__init__()
        self.values = 0  # about how many there are
        self._bad = False
        self._begun = self._last = b""  # the first and the last byte that is not blank
        self._open = b""  # brackets that are not closed, each with a "-" for what was closed in it
        self._utf8 = codecs.getincrementaldecoder("utf-8")()

    def feed(self, piece: bytes) -> None:
        if self._bad or not piece:
            return
        self._begun = self._begun or piece.lstrip(_BLANKS)[:1]
        self._last = piece.rstrip(_BLANKS)[-1:] or self._last
        try:
            self._utf8.decode(piece)
        except UnicodeDecodeError:
            self._bad = True
            return
        outside, _ = self._split(piece)
        self.values += outside.count(b",") + outside.count(b"{") + outside.count(b"[")
        brackets = outside.translate(None, _NO_BRACKETS)
        if brackets.translate(None, _BRACKETS) or not self._close_pairs(brackets):
            self._bad = True

    def _close_pairs(self, brackets: bytes) -> bool:
        """Close all pairs; return False if it is nested too deeply, or if anything follows the first value."""
        left, closed = self._open + brackets, 1
        for _ in range(_LEVELS_MAX + 1):
            if not closed:
                break
            left, closed = _PAIR.subn(b"-", left)
        over = left.startswith(b"-") and len(left) > 1
        self._open = _CLOSED.sub(b"-", left)
        levels = len(self._open) - self._open.count(b"-")
        return not closed and not over and levels <= _LEVELS_MAX

    @property
    def whole(self) -> bool:
        """True if the text was one value: one pair of brackets, closed by the last byte."""
        ends = self._open == b"-" and not self._in_string and not self._utf8.getstate()[0]
        return ends and not self._bad and self._begun in (b"{", b"[") and self._last in (b"}", b"]")


def decode(body: bytes, structure: Structure | None, elements_max: int, depth_max: int = DEPTH_MAX) -> dict[str, Any]:
    """Return the body's object; raise `Refusal` if it has none. `structure`: the counts, if they were taken on arrival."""
    if structure is None and len(body) > elements_max:
        structure = counted(body, elements_max)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(reasons.BAD_JSON, f"The body is not valid JSON: {error}.") from None
    if type(value) is not dict:
        raise Refusal(reasons.BAD_JSON, "The body must be a JSON object.")
    # It cannot be nested deeper than it has brackets. A body that encodes to the same bytes has lost no key.
    if len(body) <= _COMPARED_BYTES_MAX and _count(body, b"{") + _count(body, b"[") <= depth_max:
        if body.find(b'": ', 0, _SPACED_BYTES) < 0 and orjson.dumps(value) == body:
            return value
        if _count(body, b":") == _count_keys(value, depth_max):
            return value  # there are at most as many keys in the text as colons
    structure = structure or counted(body, elements_max)
    if structure.keys != _count_keys(value, depth_max):
        raise Refusal(reasons.BAD_JSON, "The body has an object with a duplicate key.")
    return value


def check_depth(text: bytes | bytearray, value: Any, depth_max: int = DEPTH_MAX) -> None:
    """Raise if a value is nested too deeply. `value` was parsed from `text`."""
    if _count(text, b"{") + _count(text, b"[") > depth_max:
        _count_keys(value, depth_max)


def _count(text: bytes | bytearray, rare: bytes) -> int:
    """Count a byte that is rare: `bytes.count` looks at every byte, and takes ten to fifty times as long."""
    return len(text) - len(text.replace(rare, b""))


def counted(body: bytes, elements_max: int) -> Structure:
    structure = Structure(elements_max)
    for at in range(0, len(body), _COUNTED_BYTES):
        structure.feed(body[at : at + _COUNTED_BYTES])
    return structure


def _count_keys(value: Any, depth_max: int) -> int:
    """Return the number of key-value pairs at any depth; fewer than the text's colons means that a key came twice."""
    count, level = 0, [value]
    for _ in range(depth_max):
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                count += len(item)
            for inner in item.values() if type(item) is dict else item:
                if type(inner) is dict or type(inner) is list:
                    below.append(inner)  # noqa: PERF401 (a comprehension for each object costs more)
        if not below:
            return count
        level = below
    raise Refusal(reasons.BAD_JSON, f"The body is nested more than {depth_max} levels deep.")


def with_fields(body: bytes, value: dict[str, Any], changes: dict[str, Any]) -> bytes:
    """Set top-level fields of the body and leave the rest byte for byte, because encoding it again could change it.

    (An integer beyond 64 bits, for one, would become a float.)
    """
    new: dict[str, Any] = {}
    for name, given in changes.items():
        if name not in value:
            new[name] = given
            continue
        if type(given) is type(value[name]) and given == value[name]:
            continue
        value = {**value, name: given}
        changed = _replaced(body, name, given)
        body = orjson.dumps(value) if changed is None else changed
    if not new:
        return body
    if not value:
        return orjson.dumps(new)
    start = body.index(b"{") + 1
    return b"".join((body[:start], orjson.dumps(new)[1:-1], b",", body[start:]))  # one copy, as it may be large


def _replaced(body: bytes, name: str, given: Any) -> bytes | None:
    """Replace the value of a field that the body has; return None if it is not found because its name is escaped.

    The name may also occur elsewhere, as text or in a nested object. So brackets and quotes before each occurrence are counted,
    which is cheaper than to parse the result, and takes no longer however often the name occurs. To search the whole body is
    cheaper still if the name is far behind: if there is no other, it is the field's.
    """
    key = orjson.dumps(name)
    at = body.find(key)
    if at < len(body) // 2 or body.find(key, at + 1) >= 0 or _may_be_escaped(name, body):
        at = _at_top_level(body, key)
    colon = _COLON.match(body, at + len(key)) if at >= 0 else None
    if colon is None:
        return None
    return b"".join((body[: colon.end()], orjson.dumps(given), body[_value_end(body, colon.end()) :]))


def _may_be_escaped(name: str, body: bytes) -> bool:
    return not (name.isascii() and name.isidentifier()) or _ESCAPED.search(body) is not None


def _at_top_level(body: bytes, key: bytes) -> int:
    """Return where a key of the body's own object begins; -1 if it is not found."""
    at, seen, depth, strings = -1, 0, 0, _Strings()
    while (at := body.find(key, at + 1)) >= 0:
        outside = strings.outside(body[seen:at])
        seen, depth = at, depth + sum(map(outside.count, (b"{", b"["))) - sum(map(outside.count, (b"}", b"]")))
        if depth == 1 and not strings.inside and _COLON.match(body, at + len(key)) is not None:
            break
    return at


def _value_end(body: bytes, start: int) -> int:
    """Return where the value ends that begins at `start`."""
    depth = 0
    for token in _TOKEN.finditer(body, start):
        first = token[0][:1]
        depth += (first in b"{[") - (first in b"}]")
        if depth <= 0:
            return token.end()
    return start
