"""The rules, one module per family; importing this package fills the registry."""

from hangup.lint.rule import RULES
from hangup.lint.rules import blocking, cancellation, detached, limits, queues, streams, watching

__all__ = ["blocking", "cancellation", "detached", "limits", "queues", "streams", "watching"]

_by_number = sorted(RULES.items())
RULES.clear()
RULES.update(_by_number)
