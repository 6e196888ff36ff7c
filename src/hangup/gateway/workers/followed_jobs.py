"""`FollowedJobs`: which worker follows which job at a provider. The supervisor passes on what workers say of these jobs, and
gives the jobs of a worker that ended to another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Tell = Callable[[str, str, dict[str, Any]], None]  # a worker, the kind of the message, and its fields


class _Job:
    __slots__ = ("finished", "follower", "packed")

    def __init__(self) -> None:
        self.follower = ""  # nobody, after its worker ended and before another one is ready
        self.packed = ""  # as its follower published it last
        self.finished = False


class FollowedJobs:
    def __init__(self, tell: Tell, others: Callable[[str], Iterable[str]]) -> None:
        """`tell` sends a message to a worker, or drops it; `others` returns all workers but one."""
        self._tell = tell
        self._others = others
        self._jobs: dict[str, _Job] = {}  # the oldest first

    def handle(self, worker: str, kind: str, message: dict[str, Any]) -> bool:
        """Handle a message of a worker; return False if it is about something else."""
        handler = self._HANDLERS.get(kind)
        if handler is not None:
            handler(self, worker, message)
        return handler is not None

    def _published(self, worker: str, message: dict[str, Any]) -> None:
        job = self._jobs.setdefault(message["id"], _Job())
        if job.follower not in ("", worker):  # a job from before a restart, for which clients asked two workers at once
            self._tell(worker, "provider_yield", {"packed": job.packed})
            return
        job.follower, job.packed, job.finished = worker, message["packed"], message["finished"]
        for other in self._others(worker):
            self._tell(other, "provider_job", {"packed": job.packed})

    def _forgotten(self, worker: str, message: dict[str, Any]) -> None:
        self._jobs.pop(message["id"], None)
        for other in self._others(worker):
            self._tell(other, "provider_forget", {"id": message["id"]})

    def _event(self, worker: str, message: dict[str, Any]) -> None:
        job = self._jobs.get(message["id"])
        if job is not None and job.follower:
            self._tell(job.follower, "provider_event", {name: message[name] for name in ("id", "event", "packed")})

    def unfinished(self) -> int:
        return sum(not job.finished for job in self._jobs.values())

    def joined(self, worker: str) -> None:
        """Tell a new worker of all jobs, and let it follow those that nobody follows."""
        for job in self._jobs.values():
            self._tell(worker, "provider_job", {"packed": job.packed})
        self._hand_over("", worker)

    def left(self, worker: str, heir: str | None) -> None:
        """Give the jobs of a worker that ended to another one, or to the next that joins."""
        self._hand_over(worker, heir or "")

    def _hand_over(self, worker: str, heir: str) -> None:
        for job in self._jobs.values():
            if job.follower == worker:
                job.follower = heir
                if heir and not job.finished:
                    self._tell(heir, "provider_adopt", {"packed": job.packed})

    _HANDLERS: Mapping[str, Callable[[FollowedJobs, str, dict[str, Any]], None]] = {
        "provider_job": _published,
        "provider_forget": _forgotten,
        "provider_event": _event,
    }
