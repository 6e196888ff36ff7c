"""The admin port of a host whose workers share their state with other hosts: any worker that reaches the store answers for all
gateways, those of other hosts included; one that does not answers for itself alone, and no other one can ask it.

What each process has of its own (metrics, what it has not yet written to the ledger) is asked of this host's workers.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hangup.gateway.workers.admin import ACT_S, ASK_S, WholeAdmin
from hangup.gateway.workers.process import Answer

NOT_FOUND = 404
_OTHERS_S = 2 * ASK_S  # a worker that asks other gateways waits for those that do not answer


class StoreWorkersAdmin(WholeAdmin):
    _gateways_silent: tuple[str, ...] = ()  # by the last answers

    async def ask_all(self, method: str, target: str) -> list[Answer]:
        within_s = ASK_S if method == "GET" else ACT_S
        workers = self.whole.answering_workers()
        reaching = [worker for worker in workers if worker.reaches_store]  # asked once: it may change while others are asked
        answers = await self.ask_each([worker for worker in workers if worker not in reaching], method, target, within_s)
        for number, worker in enumerate(reaching, 1):
            answer = await worker.ask(method, target, within_s + _OTHERS_S)
            if answer is None:
                continue
            if worker.reaches_store and answer[0] != NOT_FOUND:
                return [answer, *answers]
            # It may have lost the store meanwhile, and have answered for itself alone.
            others = await self.ask_each(reaching[number:], method, target, within_s + _OTHERS_S)
            return [*others, answer, *answers]
        return answers

    async def ask_merged(self, method: str, target: str) -> list[dict[str, Any]] | Response:
        values = await super().ask_merged(method, target)
        if not isinstance(values, Response):
            workers = self.whole.answering_workers()
            asked = {worker.gateway for worker in workers if not worker.reaches_store}  # they answered for themselves
            knowing = values[:1] if any(worker.reaches_store for worker in workers) else values
            named = {name for value in knowing for name in value.get("gateways_silent", ())}
            self._gateways_silent = tuple(sorted(named - asked))
        return values

    def silence(self) -> dict[str, Any]:
        return super().silence() | ({"gateways_silent": self._gateways_silent} if self._gateways_silent else {})

    async def drain(self, request: Request) -> Response:
        """Drain a backend at all gateways, or take it back; a worker that starts later asks the others."""
        return await self.drain_at_all(request)

    async def leading_worker(self, request: Request) -> Response:
        """Ask any worker: each knows which gateway judges the engines for all."""
        return await self.any_worker(request)
