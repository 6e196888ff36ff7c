"""Jobs at a provider, among several processes: one follows a job, and all know it, because clients may ask any of them.

Whoever sees a job's creation follows it. It publishes the job after each change; the hub keeps the latest and passes it on.
What another process learns of the job, it tells the follower by the hub. If the follower ends, another one goes on.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from hangup.core.jobs import Cause
from hangup.gateway.apis.hosted_jobs import ProviderAnswer
from hangup.gateway.http.head import Headers
from hangup.gateway.jobs.provider import Provider, ProviderRecord
from hangup.tasks import Tasks

_RENEW_SHARE = 0.25  # of a lease: while a client listens elsewhere, its follower is told so often
_RENEW_LEAST_S = 0.1

Send = Callable[[str, dict[str, Any]], object]  # the kind of a message, and its fields


class ProviderSharing:
    """Implements `JobSharing`."""

    def __init__(self, provider: Provider, send: Send) -> None:
        self._provider = provider
        self._send = send
        self._listening: dict[str, int] = {}  # clients that listen here to jobs that another process follows
        self._renewals = Tasks("provider jobs")

    # What this process follows

    def publish(self, job: ProviderRecord) -> None:
        self._send("provider_job", {"id": job.id, "packed": _packed(job.shared_fields()), "finished": job.state.finished})

    def forget(self, id: str) -> None:
        self._send("provider_forget", {"id": id})

    # What another one follows

    def tell_follower(self, job: ProviderRecord, event: str, *values: object) -> None:
        self._send("provider_event", {"id": job.id, "event": event, "packed": _packed(values)})

    def set_listening(self, job: ProviderRecord, on: bool) -> bool:
        """Renew the lease at its follower while a client listens here. If this process dies, that ends by itself."""
        count = self._listening.get(job.id, 0)
        if job.here and (on or not count):
            return False
        self._listening[job.id] = count = count + (1 if on else -1)
        if count <= 0:
            del self._listening[job.id]
            self.tell_follower(job, "look_soon")
        elif on and count == 1 and job.lease_s is not None:
            self._renewals.start(self._renew_while_listening(job, job.lease_s))
        return True

    async def _renew_while_listening(self, job: ProviderRecord, lease_s: float) -> None:
        while job.id in self._listening and not job.state.finished:
            if job.here:  # the follower died, and this process took over
                self._provider.renew_lease(job, self._provider.account_of(job))
            else:
                self.tell_follower(job, "renew", job.headers)
            await asyncio.sleep(max(_RENEW_LEAST_S, lease_s * _RENEW_SHARE))

    async def close(self) -> None:
        self._renewals.cancel()
        await self._renewals.wait()

    # Messages from the hub

    def handle(self, kind: str, message: dict[str, Any]) -> bool:
        """Handle a message of the hub; return False if it is about something else."""
        handler = self._HANDLERS.get(kind)
        if handler is not None:
            handler(self, message)
        return handler is not None

    def _learn(self, message: dict[str, Any]) -> None:
        self._provider.learn(_unpacked(message["packed"]))

    def _adopt(self, message: dict[str, Any]) -> None:
        self._provider.adopt(_unpacked(message["packed"]))

    def _yield(self, message: dict[str, Any]) -> None:
        self._provider.leave_to_other(_unpacked(message["packed"]))

    def _forget(self, message: dict[str, Any]) -> None:
        self._provider.drop(message["id"])

    def _event(self, message: dict[str, Any]) -> None:
        job = self._provider.find(message["id"])
        if job is not None and job.here:
            self._EVENTS[message["event"]](self, job, *_unpacked(message["packed"]))

    def _renewed(self, job: ProviderRecord, headers: Headers) -> None:
        self._provider.renew_lease(job, self._provider.account_of(job, headers))

    def _updated(self, job: ProviderRecord, answer: ProviderAnswer) -> None:
        self._provider.update(job, answer)

    def _gone(self, job: ProviderRecord) -> None:
        self._provider.mark_gone(job)

    def _client_cancelled(self, job: ProviderRecord, headers: Headers, accepted: bool) -> None:
        self._provider.note_client_cancel(job, self._provider.account_of(job, headers), accepted=accepted)

    def _cancelled(self, job: ProviderRecord, cause: Cause) -> None:
        self._provider.cancel(job, cause)

    def _look_soon(self, job: ProviderRecord) -> None:
        self._provider.look_soon(job)

    _EVENTS: Mapping[str, Callable[..., None]] = {
        "renew": _renewed,
        "update": _updated,
        "gone": _gone,
        "client_cancel": _client_cancelled,
        "cancel": _cancelled,
        "look_soon": _look_soon,
    }
    _HANDLERS: Mapping[str, Callable[[ProviderSharing, dict[str, Any]], None]] = {
        "provider_job": _learn,
        "provider_adopt": _adopt,
        "provider_yield": _yield,
        "provider_forget": _forget,
        "provider_event": _event,
    }


def _packed(value: object) -> str:
    """Return a value as a text; only a process of the same installation reads it, over a socket that nobody else has."""
    return base64.b64encode(pickle.dumps(value)).decode()


def _unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))  # noqa: S301 - from a process of ours
