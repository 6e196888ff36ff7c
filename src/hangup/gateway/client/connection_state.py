"""The states of a client's connection; `connection.py` has a picture.

They are constants of this module, too, because Python 3.11 takes as long for a member of an enum as for a function call.
"""

from __future__ import annotations

from enum import Enum, auto


class ConnectionState(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    BUSY = auto()
    TUNNEL = auto()
    LINGER = auto()
    CLOSED = auto()


IDLE, HEAD, BODY, BUSY, TUNNEL, LINGER, CLOSED = ConnectionState
