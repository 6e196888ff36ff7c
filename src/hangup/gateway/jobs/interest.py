"""Which jobs clients have asked for here, or listen to: their leases are renewed by other processes, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class ClientInterest:
    def __init__(self) -> None:
        self._asked: set[int] = set()  # since the store was last told
        self.listened: Counter[int] = Counter()  # clients that listen, by job

    def ask(self, keys: Iterable[int]) -> None:
        self._asked.update(keys)

    def listen(self, key: int) -> None:
        self.listened[key] += 1

    def stop_listening(self, key: int) -> None:
        self.listened[key] -= 1
        if not self.listened[key]:
            del self.listened[key]

    def take(self) -> set[int]:
        """Return the jobs of which the store must be told, and start over."""
        asked, self._asked = self._asked, set()
        return asked | self.listened.keys()
