"""hangup: when the client hangs up, the GPU stops.

As a library it has `stream`, `run`, `tethered`, `Gate` and `CancelToken` for servers, and `hangup.httpx` for clients. They are imported
when they are first used, so that `import hangup` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hangup.library.ended import CallEnded, Ended
    from hangup.library.run import run, tethered
    from hangup.library.stream import stream
    from hangup.library.token import Cancelled, CancelToken

__version__ = "0.1.0"

__all__ = ["CallEnded", "CancelToken", "Cancelled", "Ended", "__version__", "run", "stream", "tethered"]

_HOMES = {
    "CallEnded": "hangup.library.ended",
    "CancelToken": "hangup.library.token",
    "Cancelled": "hangup.library.token",
    "Ended": "hangup.library.ended",
    "run": "hangup.library.run",
    "stream": "hangup.library.stream",
    "tethered": "hangup.library.run",
}


def __getattr__(name: str) -> Any:
    if name == "httpx":
        return import_module("hangup.httpx")
    if name not in _HOMES:
        raise AttributeError(f"module 'hangup' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
