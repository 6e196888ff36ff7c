"""The ended calls of this process that another one judges, because it watches the engine for all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from hangup.core.reaper.pending_stops import REMEMBERED, PendingStop, StopState


class GivenStops:
    def __init__(self) -> None:
        self._open: dict[str, PendingStop] = {}  # by key
        self._released: OrderedDict[str, PendingStop] = OrderedDict()  # one of them may turn out to be still running

    def __len__(self) -> int:
        return len(self._open)

    def add(self, stop: PendingStop) -> None:
        self._open[stop.key] = stop

    def __iter__(self) -> Iterator[PendingStop]:
        return iter(self._open.values())

    def take(self, key: str) -> PendingStop | None:
        """Remove and return a call, because this process judges the engine now."""
        return self._open.pop(key, None) or self._released.pop(key, None)

    def take_all(self) -> list[PendingStop]:
        given, self._open = list(self._open.values()), {}
        return given

    def found(self, key: str, state: StopState, tokens_now: int | None, aborts: int, now: float) -> PendingStop | None:
        """Note what was found out about a call; return it if this is news."""
        stop = self._open.get(key) or self._released.get(key)
        if stop is None or stop.state is state:
            return None
        stop.tokens_now, stop.aborts = tokens_now, aborts
        if state is StopState.ZOMBIE:
            stop.zombie_since, stop.released, stop.released_at = now, None, None
            self._released.pop(key, None)
            self._open[key] = stop
        else:
            stop.release(state, now)
            self._open.pop(key, None)
            self._remember(stop)
        return stop

    def take_forgotten(self, now: float, after_s: float) -> list[PendingStop]:
        """Release and return the calls about which nobody said anything for this long after their grace period."""
        late = [stop for stop in self._open.values() if stop.zombie_since is None and now > stop.due + after_s]
        for stop in late:
            stop.release(StopState.UNVERIFIED, now)
            del self._open[stop.key]
            self._remember(stop)
        return late

    def _remember(self, stop: PendingStop) -> None:
        self._released[stop.key] = stop
        if len(self._released) > REMEMBERED:
            self._released.popitem(last=False)
