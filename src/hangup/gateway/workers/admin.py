"""The admin port of the whole: asks the workers, and merges their answers.

A question goes to all workers that answer. What only one of them knows (a call by its id) comes from that one; what all of them
know alike (jobs, the ledger) from any. If some worker does not answer, the answer says so in `workers_silent`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlencode

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from hangup.gateway.admin.calls import PAGE_MAX, BadQuery, Page
from hangup.gateway.admin.guard import Guard, Policy
from hangup.gateway.admin.overview import PERIOD_S, WATCHERS_MAX, period
from hangup.gateway.admin.server import page_routes
from hangup.gateway.workers import merge, metrics
from hangup.gateway.workers.process import Answer, WorkerProcess

ASK_S = 5.0
ACT_S = 60.0  # a kill waits for the engines
_NO_WORKER = {"error": "no worker is running; see the gateway log"}
METRICS = """\
# HELP hangup_workers Worker processes that serve the data port.
# TYPE hangup_workers gauge
hangup_workers {workers}
# HELP hangup_worker_restarts_total Workers that were replaced because they died or hung.
# TYPE hangup_worker_restarts_total counter
hangup_worker_restarts_total {restarts}
"""


class Whole(Protocol):
    """The supervisor, as far as operators see it."""

    draining: bool
    restarts: int
    drained_backends: set[str]
    retired_counters: metrics.Families

    def answering_workers(self) -> list[WorkerProcess]: ...

    def serving_workers(self) -> list[WorkerProcess]: ...

    def silent_workers(self) -> list[WorkerProcess]: ...

    def leading_worker(self) -> WorkerProcess | None: ...

    def silent_slots(self) -> list[int]: ...

    def fault(self, error: Exception) -> None:
        """Log an error of ours."""


class WholeAdmin:
    """Answers for all workers."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self._watchers = 0
        self._looking = asyncio.Lock()
        self._glance: dict[str, Any] | None = None  # the latest overview,
        self._made_at = 0.0  # and its time

    # Asking

    async def ask_all(self, method: str, target: str) -> list[Answer]:
        return await self.ask_each(self.whole.answering_workers(), method, target, ASK_S if method == "GET" else ACT_S)

    @staticmethod
    async def ask_each(workers: Sequence[WorkerProcess], method: str, target: str, within_s: float) -> list[Answer]:
        answers = await asyncio.gather(*(worker.ask(method, target, within_s) for worker in workers))
        return [answer for answer in answers if answer is not None]

    async def ask_merged(self, method: str, target: str) -> list[dict[str, Any]] | Response:
        """Return the answers' contents, or the response to send if none of them was a success."""
        answers = await self.ask_all(method, target)
        values = [orjson.loads(body) for status, body in answers if status == 200]
        return values or first_answer(answers)

    def json(self, value: dict[str, Any], status: int = 200) -> Response:
        return Response(orjson.dumps(value | self.silence()), status, media_type="application/json")

    def silence(self) -> dict[str, Any]:
        """Return who did not answer, as a part of an answer."""
        silent = self.whole.silent_slots()
        return {"workers_silent": silent} if silent else {}

    # Answers

    async def readyz(self, request: Request) -> Response:
        """Ready if any worker is: it accepts the connections of those that are not."""
        serving = self.whole.serving_workers()
        found = await asyncio.gather(*(worker.ask("GET", "/readyz", ASK_S) for worker in serving))
        answers = [answer for answer in found if answer is not None]
        ready = any(status == 200 for status, _ in answers) and not self.whole.draining
        lines = ["ready" if ready else "draining" if self.whole.draining else _reason(answers)]
        lines += [f"not running: worker {slot}" for slot in self.whole.silent_slots()]
        more = {line for _, body in answers for line in body.splitlines() if line.startswith("not running:")}
        return PlainTextResponse("\n".join([*lines, *sorted(more)]) + "\n", 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        # Counters never fall, or Prometheus would take that for a restart: what those had that ended, or are silent, stays.
        pages = [self.whole.retired_counters]
        pages += [metrics.counters_of(worker.counted) for worker in self.whole.silent_workers()]
        workers = self.whole.answering_workers()
        for worker, answer in zip(
            workers, await asyncio.gather(*(w.ask("GET", "/metrics", ASK_S) for w in workers)), strict=True
        ):
            if answer is not None:
                worker.counted = metrics.parse(answer[1])
            pages.append(worker.counted)
        own = METRICS.format(workers=len(self.whole.serving_workers()), restarts=self.whole.restarts)
        return Response(metrics.render(metrics.merge(pages)) + own, media_type=CONTENT_TYPE_LATEST)

    async def list_calls(self, request: Request) -> Response:
        try:
            page = Page.read(request.query_params)
        except BadQuery as error:
            return self.json({"error": str(error)}, 400)
        sort = "-" * page.descending + page.sort
        query = request.query_params.multi_items()
        kept = [(name, value) for name, value in query if name not in ("offset", "limit")]
        last = min(page.offset + page.limit, PAGE_MAX)
        target = "/api/calls?" + urlencode([*kept, ("offset", "0"), ("limit", str(last))])
        values = await self.ask_merged("GET", target)
        return values if isinstance(values, Response) else self.json(merge.calls(values, sort, page.offset, page.limit))

    async def kill_chosen(self, request: Request) -> Response:
        values = await self.ask_merged("DELETE", target_of(request))
        if isinstance(values, Response):
            return values
        merged: dict[str, Any] = {}
        for value in values:
            for name, part in value.items():
                merged[name] = merged[name] + part if isinstance(part, list) and name in merged else part
        return self.json(merged)

    async def one_call(self, request: Request) -> Response:
        """Show or kill a call; the worker that has it answers, the others know no such call."""
        return first_answer(await self.ask_all(request.method, target_of(request)))

    async def ids(self, request: Request) -> Response:
        values = await self.ask_merged("GET", target_of(request))
        if isinstance(values, Response):
            return values
        return self.json({"ids": list(dict.fromkeys(id for value in values for id in value["ids"]))})

    async def zombies(self, request: Request) -> Response:
        values = await self.ask_merged("GET", "/api/zombies")
        if isinstance(values, Response):
            return values
        return self.json({"zombies": merge.latest(value["zombies"] for value in values)})

    async def history(self, request: Request) -> Response:
        values = await self.ask_merged("GET", target_of(request))
        return values if isinstance(values, Response) else self.json(merge.history(values))

    async def backends(self, request: Request) -> Response:
        values = await self.ask_merged("GET", "/api/backends")
        if isinstance(values, Response):
            return values
        return self.json({"backends": merge.backends([value["backends"] for value in values])})

    async def drain(self, request: Request) -> Response:
        name, drained = request.path_params["name"], self.whole.drained_backends
        is_new = request.method == "PUT" and name not in drained
        (drained.add if request.method == "PUT" else drained.discard)(name)  # first: a worker may start while others are asked
        answer = await self.drain_at_all(request)
        if is_new and answer.status_code != 200:  # no worker knows it
            drained.discard(name)
        return answer

    async def drain_at_all(self, request: Request) -> Response:
        values = await self.ask_merged(request.method, target_of(request))
        if isinstance(values, Response):
            return values
        return self.json({"backends": merge.backends([value["backends"] for value in values])})

    async def report(self, request: Request) -> Response:
        """All workers write to one ledger: each writes what it still has in memory before it answers, so the last answer has
        everything."""
        answers: list[Answer] = []
        for worker in self.whole.answering_workers():
            answer = await worker.ask("GET", target_of(request), ACT_S)
            answers += [answer] if answer is not None else []
        return first_answer(answers[::-1])

    async def leading_worker(self, request: Request) -> Response:
        """Ask the worker that judges the engines for all."""
        worker = self.whole.leading_worker()
        answer = await worker.ask(request.method, target_of(request), ACT_S) if worker is not None else None
        return first_answer([answer] if answer is not None else [])

    async def any_worker(self, request: Request) -> Response:
        """Ask one worker: all know the same, or one must do it for all."""
        for worker in self.whole.answering_workers():
            answer = await worker.ask(request.method, target_of(request), ACT_S)
            if answer is not None:
                return first_answer([answer])
        return self.json(_NO_WORKER, 503)

    async def overview(self, request: Request) -> Response:
        value = await self._overview()
        return self.json(value) if value is not None else self.json(_NO_WORKER, 503)

    async def _overview(self) -> dict[str, Any] | None:
        """Return the overview, asking at most twice per period: many dashboards cost the workers no more than one."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if self._glance is None or loop.time() - self._made_at >= PERIOD_S / 2:
                values = await self.ask_merged("GET", "/api/overview")
                self._glance = None if isinstance(values, Response) else merge.overview(values)
                self._made_at = loop.time()
            return self._glance

    async def events(self, request: Request) -> Response:
        if self._watchers >= WATCHERS_MAX:
            return self.json({"error": "too many event streams are open"}, 503)
        return StreamingResponse(self._snapshots(request.app.state.stopping), media_type="text/event-stream")

    async def _snapshots(self, stopping: asyncio.Event) -> AsyncIterator[bytes]:
        self._watchers += 1
        try:
            while not stopping.is_set():
                value = await self._overview()
                if value is not None:
                    yield b"data: " + orjson.dumps(value | self.silence()) + b"\n\n"
                await period(stopping)
        finally:
            self._watchers -= 1


def _reason(answers: list[Answer]) -> str:
    return answers[0][1].partition("\n")[0] if answers else "no worker is running"


def first_answer(answers: list[Answer]) -> Response:
    """Return the first success, or else the first answer that is not "there is no such thing", or else any."""
    if not answers:
        return Response(orjson.dumps(_NO_WORKER), 503, media_type="application/json")
    status, body = min(answers, key=lambda answer: (answer[0] != 200, answer[0] == 404))
    return Response(body, status, media_type="application/json")


def target_of(request: Request) -> str:
    path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    query: bytes = request.scope["query_string"]
    return (path.partition(b"?")[0] + (b"?" + query if query else b"")).decode("latin-1")


async def _healthz(request: Request) -> Response:
    return PlainTextResponse("ok\n")


def make_whole_app(admin: WholeAdmin, policy: Policy) -> Starlette:
    """Return the admin port's application: the same paths as those of a gateway in one process."""

    async def fault(request: Request, error: Exception) -> Response:
        admin.whole.fault(error)
        return JSONResponse({"error": "internal gateway error; see the gateway log"}, 500)

    jobs = partial(Route, endpoint=admin.any_worker)
    return Starlette(
        routes=[
            Route("/healthz", _healthz),
            Route("/readyz", admin.readyz),
            Route("/metrics", admin.metrics),
            Route("/api/overview", admin.overview, methods=["GET"]),
            Route("/api/events", admin.events, methods=["GET"]),
            Route("/api/history", admin.history, methods=["GET"]),
            Route("/api/calls", admin.list_calls, methods=["GET"]),
            Route("/api/calls", admin.kill_chosen, methods=["DELETE"]),
            Route("/api/calls/{id}", admin.one_call, methods=["GET", "DELETE"]),
            Route("/api/ids", admin.ids, methods=["GET"]),
            Route("/api/zombies", admin.zombies, methods=["GET"]),
            Route("/api/report", admin.report, methods=["GET"]),
            Route("/api/backends", admin.backends, methods=["GET"]),
            Route("/api/backends/{name:path}/drain", admin.drain, methods=["PUT", "DELETE"]),
            Route("/api/backends/{name:path}/orphans", admin.leading_worker, methods=["GET", "DELETE"]),
            jobs("/api/jobs", methods=["GET", "DELETE"]),
            jobs("/api/jobs/{id}", methods=["GET", "DELETE"]),
            *page_routes(),
        ],
        middleware=[Middleware(Guard, policy)],
        exception_handlers={Exception: fault},
    )
