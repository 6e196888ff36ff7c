"""The states of a client's connection; `connection.py` has a picture.

They are constants of this module, too, because Python 3.11 takes as long for a member of an enum as for a function call.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class ConnectionState(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    BUSY = auto()
    TUNNEL = auto()
    LINGER = auto()
    CLOSED = auto()


IDLE: Final = ConnectionState.IDLE
HEAD: Final = ConnectionState.HEAD
BODY: Final = ConnectionState.BODY
BUSY: Final = ConnectionState.BUSY
TUNNEL: Final = ConnectionState.TUNNEL
LINGER: Final = ConnectionState.LINGER
CLOSED: Final = ConnectionState.CLOSED
