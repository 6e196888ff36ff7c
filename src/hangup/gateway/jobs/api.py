"""Routes job requests that the gateway answers itself to their handlers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from hangup.core import reasons
from hangup.errors import Refusal
from hangup.gateway.apis.base import Ask
from hangup.gateway.apis.routes import Router
from hangup.gateway.jobs.batches import Batches
from hangup.gateway.jobs.calls import Calls
from hangup.gateway.jobs.files import Files
from hangup.gateway.jobs.http_messages import JobHttpRequest, JobHttpResponse, Json
from hangup.gateway.jobs.messages import MessageBatches
from hangup.gateway.jobs.registry import JobRegistry
from hangup.gateway.jobs.responses import BackgroundResponses
from hangup.gateway.jobs.upload import Upload

Handler = Callable[..., Awaitable[JobHttpResponse]]


class JobApi:
    """The entry point of all job APIs."""

    def __init__(self, registry: JobRegistry, router: Callable[[], Router]) -> None:
        self.registry = registry
        batches = Batches(registry, router)
        files = Files(registry, batches.result_lines)
        messages = MessageBatches(registry, router)
        self._calls = Calls(registry)
        self._responses = BackgroundResponses(registry)
        self._paths: list[tuple[str, re.Pattern[str], Handler]] = [
            (method, re.compile(path.replace("{id}", "([A-Za-z0-9_.-]{1,128})")), handler)
            for method, path, handler in (
                ("POST", "/v1/files", files.upload),
                ("GET", "/v1/files", files.list),
                ("GET", "/v1/files/{id}", files.retrieve),
                ("DELETE", "/v1/files/{id}", files.delete),
                ("GET", "/v1/files/{id}/content", files.content),
                ("POST", "/v1/batches", batches.create),
                ("GET", "/v1/batches", batches.list),
                ("GET", "/v1/batches/{id}", batches.retrieve),
                ("POST", "/v1/batches/{id}/cancel", batches.cancel),
                ("POST", "/v1/messages/batches", messages.create),
                ("GET", "/v1/messages/batches", messages.list),
                ("GET", "/v1/messages/batches/{id}", messages.retrieve),
                ("DELETE", "/v1/messages/batches/{id}", messages.delete),
                ("POST", "/v1/messages/batches/{id}/cancel", messages.cancel),
                ("GET", "/v1/messages/batches/{id}/results", messages.results),
                ("GET", "/v1/responses/{id}", self._responses.retrieve),
                ("DELETE", "/v1/responses/{id}", self._responses.delete),
                ("POST", "/v1/responses/{id}/cancel", self._responses.cancel),
                ("GET", "/v1/jobs", self._calls.list),
                ("GET", "/v1/jobs/{id}", self._calls.retrieve),
                ("DELETE", "/v1/jobs/{id}", self._calls.delete),
                ("GET", "/v1/jobs/{id}/events", self._calls.events),
            )
        ]

    async def answer(self, request: JobHttpRequest) -> JobHttpResponse:
        path_exists = False
        for method, path, handler in self._paths:
            match = path.fullmatch(request.path)
            if match is not None:
                path_exists = True
                if method == request.method:
                    return await handler(request, *match.groups())
        raise (
            Refusal(reasons.METHOD_NOT_ALLOWED)
            if path_exists
            else Refusal(reasons.NOT_FOUND, f"Unknown path {request.path[:200]}.")
        )

    async def defer(self, request: JobHttpRequest, ask: Ask, value: Json) -> JobHttpResponse:
        """Turn a generation request whose client does not wait for the answer into a job."""
        if value.get("background"):
            return await self._responses.create(request, value, ask.stream)
        return await self._calls.create(request, ask.model, ask.stream)

    def upload(self, request: JobHttpRequest, pause: Callable[[bool], None]) -> Upload | None:
        """Return an `Upload` that takes the body in chunks, if the request uploads a file."""
        if request.method != "POST" or request.path != "/v1/files":
            return None
        return Upload(self.registry, request.tenant, request.fields.get(b"content-type", b""), pause)
