"""All exceptions that hangup raises on purpose, separated by who must act.

`ConfigError` is for the operator, `Refusal` for the client, `EngineFault` and `WireError` are facts about a peer. Our own bugs
are assertions, and nothing catches them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hangup.core.reasons import Reason


class HangupError(Exception):
    """The base class of all errors that hangup raises on purpose."""


class ConfigError(HangupError):
    """The configuration cannot be used; `problems` lists every problem found, ready to print."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class WireError(HangupError):
    """A peer violated HTTP. The text says how; `status` is the status for a client."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class EventTooLarge(WireError):
    """An event of a stream exceeds the size limit."""

    def __init__(self) -> None:
        super().__init__("an event of the stream exceeds the size limit")


class Refusal(HangupError):
    """The client's request is refused."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail or reason.message)
        self.reason = reason
        self.detail = detail


class DnsFailure(HangupError):
    """DNS did not answer, so nothing is known about a name."""


class EngineFault(HangupError):
    """An engine failed before its first byte, so another one may still take over."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class OutOfResources(EngineFault):
    """This process has no file descriptors, ports or memory left to ask an engine. That says nothing about the engine."""


class EngineSilent(EngineFault):
    """The backend is up but did not answer in time."""


class LedgerBusy(HangupError):
    """The ledger cannot be used now: its disk hangs, another process has locked it, or its server does not answer."""
