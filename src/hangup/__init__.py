"""hangup: when the client hangs up, the GPU stops.

As a library it has `stream`, `run`, `tethered`, `Gate` and `CancelToken` for servers, and `hangup.httpx` for clients. They
are imported when they are first used, so that `import hangup` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hangup.library.deadline import deadline
    from hangup.library.ended import CallEnded, Ended
    from hangup.library.faults import ErrorAnswer, UpstreamError
    from hangup.library.gate import Gate
    from hangup.library.outgoing import closing
    from hangup.library.run import run, tethered
    from hangup.library.stream import stream
    from hangup.library.threads import set_threads_max
    from hangup.library.token import Cancelled, CancelToken

__version__ = "0.1.0"

__all__ = [
    "CallEnded",
    "CancelToken",
    "Cancelled",
    "Ended",
    "ErrorAnswer",
    "Gate",
    "UpstreamError",
    "__version__",
    "closing",
    "deadline",
    "run",
    "set_threads_max",
    "stream",
    "tethered",
]

_HOMES = {
    "CallEnded": "ended:CallEnded",
    "CancelToken": "token:CancelToken",
    "Cancelled": "token:Cancelled",
    "Ended": "ended:Ended",
    "ErrorAnswer": "faults:ErrorAnswer",
    "Gate": "gate:Gate",
    "UpstreamError": "faults:UpstreamError",
    "closing": "outgoing:closing",
    "deadline": "deadline:deadline",
    "run": "run:run",
    "set_threads_max": "threads:set_threads_max",
    "stream": "stream:stream",
    "tethered": "run:tethered",
}


def __getattr__(name: str) -> Any:
    if name in {"httpx", "httpx2", "sources"}:
        return import_module(f"hangup.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'hangup' has no attribute {name!r}")
    module, _, inner = _HOMES[name].partition(":")
    return getattr(import_module(f"hangup.library.{module}"), inner)
