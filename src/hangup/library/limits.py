"""The limits of a call in an application, with their defaults; `None` switches a limit off.

By default nothing that the engine would have finished is cut: only silence ends a call, after as long as the SDKs wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hangup.core.call import CallTimeLimits

GRACE_S = 5.0  # how long an engine may take to stop before the log names it
CLIENT_SILENCE_S = 30.0  # a host that acknowledges nothing for this long is gone
WRITE_STALL_S = 30.0  # a client that reads nothing for this long is gone
SILENT_ENGINE_S = 600.0  # the read timeout of OpenAI's and Anthropic's SDKs: after this they give up, too


@dataclass(frozen=True, slots=True)
class Limits:
    first_token_s: float | None = SILENT_ENGINE_S
    gap_s: float | None = SILENT_ENGINE_S
    total_s: float | None = None
    max_tokens: int | None = None
    write_stall_s: float | None = WRITE_STALL_S
    client_silence_s: float | None = CLIENT_SILENCE_S
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise TypeError(f"{name} must be a number, or None for no limit; got {value!r}")
            if value is not None and not value > 0:  # which a NaN is not either
                raise ValueError(f"{name} must be above 0, or None for no limit; got {value!r}")

    def clock(self) -> CallTimeLimits:
        return CallTimeLimits(_or_infinite(self.total_s), _or_infinite(self.first_token_s), _or_infinite(self.gap_s))


def check_functions(**functions: object) -> None:
    """Refuse what is not a function, such as the result of one (`abort=engine.abort(id)`), before it is needed."""
    for name, value in functions.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be a function, or None; got {value!r}")


def _or_infinite(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
