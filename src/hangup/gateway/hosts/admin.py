"""The admin port of a gateway that shares its state: what shows or ends calls, or drains a backend, is asked of all gateways,
everything else of this one. If some gateway does not answer, the answer says so in `gateways_silent`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from hangup.gateway.admin.guard import Guard, Policy
from hangup.gateway.hosts.questions import Answer, Questions
from hangup.gateway.workers import merge
from hangup.gateway.workers.admin import ACT_S, ASK_S, Whole, WholeAdmin, first_answer, target_of

_ADOPT_S = 2.0  # a gateway that starts waits no longer for others


class Asked(Protocol):
    async def ask(self, method: str, target: str, within_s: float) -> Answer | None: ...


class _Own:
    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    async def ask(self, method: str, target: str, within_s: float) -> Answer | None:
        return await self._questions.ask_self(method, target)


class _Other:
    def __init__(self, questions: Questions, name: str) -> None:
        self._questions, self._name = questions, name

    async def ask(self, method: str, target: str, within_s: float) -> Answer | None:
        return await self._questions.ask(self._name, method, target, within_s)


class SharedLink(Protocol):
    @property
    def up(self) -> bool: ...

    @property
    def leader(self) -> str: ...

    @property
    def questions(self) -> Questions: ...


class _Gateways:
    """All gateways, as `WholeAdmin` sees workers."""

    def __init__(self, link: SharedLink) -> None:
        self._link = link

    def answering_workers(self) -> Sequence[Asked]:
        questions = self._link.questions
        others = [_Other(questions, name) for name in questions.others] if self._link.up else []
        return [_Own(questions), *others]

    def leading(self) -> Asked:
        """Return the gateway that judges the engines for all: this one, if there is no other."""
        questions, leader = self._link.questions, self._link.leader
        return _Other(questions, leader) if self._link.up and leader in questions.others else _Own(questions)


class GatewaysAdmin(WholeAdmin):
    """Answers for all gateways."""

    def __init__(self, link: SharedLink) -> None:
        gateways = _Gateways(link)
        super().__init__(cast("Whole", gateways))  # of which this class uses no more
        self._gateways, self._link = gateways, link

    def silence(self) -> dict[str, Any]:
        questions = self._link.questions
        silent = sorted(questions.silent if self._link.up else questions.others)
        return {"gateways_silent": silent} if silent else {}

    async def ask_all(self, method: str, target: str) -> list[Answer]:
        """Ask all gateways. A request that ends calls goes only to those that answer now: others would keep it waiting."""
        gateways = self._gateways.answering_workers()
        if method != "GET":
            found = await asyncio.gather(*(gateway.ask("GET", "/api/calls?limit=1", ASK_S) for gateway in gateways))
            gateways = [gateway for gateway, answer in zip(gateways, found, strict=True) if answer is not None]
        within_s = ASK_S if method == "GET" else ACT_S
        answers = await asyncio.gather(*(gateway.ask(method, target, within_s) for gateway in gateways))
        return [answer for answer in answers if answer is not None]

    async def one_call(self, request: Request) -> Response:
        """Show or kill a call: the gateway that has it is asked."""
        target, gateways = target_of(request), self._gateways.answering_workers()
        found = await asyncio.gather(*(gateway.ask("GET", target, ASK_S) for gateway in gateways))
        answers = [answer for answer in found if answer is not None]
        if request.method == "DELETE":
            having = [gateway for gateway, answer in zip(gateways, found, strict=True) if answer and answer[0] == 200]
            ended = await asyncio.gather(*(gateway.ask("DELETE", target, ACT_S) for gateway in having))
            answers = [answer for answer in ended if answer is not None] or answers
        return first_answer(answers)

    async def drain(self, request: Request) -> Response:
        """Drain a backend at all gateways, or take it back; one that starts later asks the others (`adopt_drains`)."""
        return await self.drain_at_all(request)

    async def leading_gateway(self, request: Request) -> Response:
        answer = await self._gateways.leading().ask(request.method, target_of(request), ACT_S)
        return first_answer([answer] if answer is not None else [])


async def adopt_drains(link: SharedLink, drain: Callable[[str], object]) -> None:
    """Drain what the other gateways have drained: an operator may have done so before this one was started."""
    others = [link.questions.ask(name, "GET", "/api/backends", _ADOPT_S) for name in link.questions.others]
    found = [answer for answer in await asyncio.gather(*others) if answer is not None and answer[0] == 200]
    for row in merge.backends([orjson.loads(body)["backends"] for _, body in found]):
        if row["drained"]:
            drain(row["name"])


def make_gateways_app(link: SharedLink, own: ASGIApp, policy: Policy) -> Starlette:
    """Return the admin port's application; `own` answers for this gateway alone."""
    admin = GatewaysAdmin(link)
    return Starlette(
        routes=[
            Route("/api/overview", admin.overview, methods=["GET"]),
            Route("/api/events", admin.events, methods=["GET"]),
            Route("/api/history", admin.history, methods=["GET"]),
            Route("/api/calls", admin.list_calls, methods=["GET"]),
            Route("/api/calls", admin.kill_chosen, methods=["DELETE"]),
            Route("/api/calls/{id}", admin.one_call, methods=["GET", "DELETE"]),
            Route("/api/ids", admin.ids, methods=["GET"]),
            Route("/api/zombies", admin.zombies, methods=["GET"]),
            Route("/api/backends", admin.backends, methods=["GET"]),
            Route("/api/backends/{name:path}/drain", admin.drain, methods=["PUT", "DELETE"]),
            Route("/api/backends/{name:path}/orphans", admin.leading_gateway, methods=["GET", "DELETE"]),
            Mount("/", app=own),
        ],
        middleware=[Middleware(Guard, policy)],
    )
