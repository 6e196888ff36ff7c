"""Keeps keys and prompts out of core dumps: the process writes none, while the engines that it starts may.

Only the soft limit changes, so an operator who needs one can allow it: `prlimit --core=unlimited: --pid PID`.
"""

from __future__ import annotations

import contextlib
import resource

_given: tuple[int, int] | None = None  # the limits before


def forbid() -> None:
    """Write no core dump of this process from now on."""
    global _given  # noqa: PLW0603 - a property of the process
    _given = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, _given[1]))


def allow_again() -> None:
    """Restore the limits; for a child process, before it runs another program."""
    if _given is not None:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, _given)
