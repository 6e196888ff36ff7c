"""Request bodies of the allowed size that take the longest to check."""

from __future__ import annotations

from collections.abc import Callable

WORST_BODIES: dict[str, Callable[[], bytes]] = {
    "deep": lambda: b'{"messages":' + b"[" * 5_000_000 + b"}",
    "objects": lambda: b'{"messages":[' + b"{}," * 5_000_000 + b"{}]}",
    "backslashes": lambda: b'{"messages":"' + b"\\" * 10_000_000 + b'"}',
    "quotes": lambda: b'{"messages":"' + b'\\"' * 5_000_000 + b'"}',
    "strings": lambda: b'{"messages":["' + b'","' * 4_000_000 + b'"]}',
    "a key twice": lambda: b'{"messages":[' + b'{"a":1},' * 40_000 + b'{"a":1,"a":2}]}',
}
