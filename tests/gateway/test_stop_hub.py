"""Members, their hub and the leader among them, without sockets: who learns what, and who may act."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from hangup.config import BackendSettings, LimitSettings
from hangup.core.admission import HealthEvent, Trust
from hangup.core.members import EndedCall, Members, StopFinding
from hangup.gateway.backends.aborts import Aborts
from hangup.gateway.backends.backend import Backend
from hangup.gateway.members.peers import MemberPeers
from hangup.gateway.members.stop_hub import StopHub
from hangup.gateway.reaper import Reaper
from hangup.gateway.reaper.peers import SharedBackend


class FakeReaper:
    """Notes what the reaper of a member is asked to do."""

    def __init__(self) -> None:
        self.led: list[tuple[list[EndedCall], dict[str, Any]]] = []
        self.followed = self.doubts = 0
        self.taken: list[EndedCall] = []
        self.learned: list[StopFinding] = []
        self.trust: dict[str, Trust] = {}

    def lead(self, calls: list[EndedCall], steps: dict[str, Any]) -> list[EndedCall]:
        self.led.append((calls, steps))
        return []

    def follow(self) -> None:
        self.followed += 1

    def doubt(self) -> None:
        self.doubts += 1

    def take_calls(self, calls: Any) -> list[EndedCall]:
        self.taken += calls
        return []

    def found(self, row: StopFinding) -> None:
        self.learned.append(row)

    def take_trust(self, backend: str, trust: Trust) -> None:
        self.trust[backend] = trust

    def backends_named(self, name: str) -> list[Any]:
        return []


class Whole:
    """Members that reach each other through a hub, by messages that are JSON. A member that is `deaf` answers nothing."""

    def __init__(self, *names: str) -> None:
        self.members = Members(1.0, 1.0)
        self.hub = StopHub(self._tell, self.members)
        self.deaf: set[str] = set()
        self.asked: list[tuple[str, str]] = []  # who was asked what for the leader
        self.reapers = {name: FakeReaper() for name in names}
        self.peers = {name: MemberPeers(self._sender(name)) for name in names}
        for name, peers in self.peers.items():
            stopping = SimpleNamespace(reaper=self.reapers[name])
            gateway: Any = SimpleNamespace(stopping=stopping, log=SimpleNamespace(event=lambda *_, **__: None))
            gateway.accounting = SimpleNamespace(store=None)
            gateway.backends = SimpleNamespace(by_name={})
            peers.start(gateway)
            self.join(name)

    def join(self, name: str) -> None:
        self.members.join(name)
        self.hub.joined(name)

    def _sender(self, name: str) -> Callable[[str, dict[str, Any]], None]:
        return lambda kind, fields: self._soon(self.hub.handle, name, kind, fields)

    def _tell(self, name: str, kind: str, fields: dict[str, Any]) -> None:
        if kind == "question":
            self.asked.append((name, fields["what"]))
        if name not in self.deaf:
            self._soon(self.peers[name].handle, kind, fields)

    @staticmethod
    def _soon(handle: Callable[..., object], *args: Any) -> None:
        fields = json.loads(json.dumps(args[-1]))
        asyncio.get_running_loop().call_soon(lambda: handle(*args[:-1], fields))

    def leave(self, name: str) -> None:
        self.deaf.add(name)
        self.members.leave(name)
        self.hub.left(name, died=True)


def call(key: str) -> EndedCall:
    return EndedCall(key, "gpu", f"call-{key}", 0.0, False, 0, 1, None, False, "t", "m", "client_gone")


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(main())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_ended_calls_go_to_the_leader_and_findings_to_those_that_had_them() -> None:
    async def test() -> None:
        whole = Whole("a", "b", "c")
        await settle()
        assert [peers.leads for peers in whole.peers.values()] == [True, False, False]
        whole.peers["b"].hand_in(call("k"))
        whole.peers["a"].hand_in(call("own"))
        await settle()
        (taken,) = whole.reapers["a"].taken
        assert (taken.key, taken.member) == ("k", "b"), "its own it has already"
        whole.peers["a"].publish([StopFinding(taken, "verified"), StopFinding(call("own"), "verified")])
        await settle()
        assert [row.call.key for row in whole.reapers["b"].learned] == ["k"] and not whole.reapers["c"].learned
        assert not whole.hub.is_open("gpu", "k") and not whole.hub.is_open("gpu", "own")

    run(test)


def test_the_next_leader_gets_what_is_open_and_the_last_step() -> None:
    async def test() -> None:
        whole = Whole("a", "b")
        await settle()
        whole.peers["a"].hand_in(call("own"))
        zombie = StopFinding(call("z")._replace(zombie=True, aborts=1), "zombie")
        assert await whole.peers["a"].may_take("gpu", {"rung": "degraded"}, [zombie])
        whole.leave("a")
        await settle()
        ((calls, steps),) = whole.reapers["b"].led
        assert {(row.key, row.member, row.zombie, row.aborts) for row in calls} == {("own", "a", False, 0), ("z", "a", True, 1)}
        assert steps == {"gpu": {"rung": "degraded"}} and whole.reapers["b"].doubts == 1

    run(test)


def test_a_leader_that_was_stopped_may_do_nothing_when_it_wakes_up() -> None:
    async def test() -> None:
        whole = Whole("a", "b")
        await settle()
        whole.members.look(0.0)
        whole.members.note_message("b")
        whole.members.look(1.5)  # a is silent
        whole.deaf.add("a")
        whole.hub.follow_leader()
        await settle()
        whole.deaf.clear()
        assert whole.peers["a"].leads, "it does not know yet"
        assert not await whole.peers["a"].may_take("gpu", {"rung": "restarting"}, [])
        whole.peers["a"].publish([StopFinding(call("k")._replace(member="b"), "verified")])
        await settle()
        assert not whole.reapers["b"].learned
        assert await SharedBackend("gpu", whole.peers["a"]).abandon("It is stuck.") == 0
        assert not whole.asked, "the others keep their calls"
        assert await whole.peers["b"].may_take("gpu", {"rung": "degraded"}, [])

    run(test)


def test_a_member_that_does_not_answer_means_no_sum_and_maybe_a_live_call() -> None:
    async def test() -> None:
        whole = Whole("a", "b", "c")
        await settle()
        backend = SharedBackend("gpu", whole.peers["a"])
        assert await backend.count_before()
        assert await backend.count_after() is not None and backend.live_calls == 0
        await backend.count_before()
        asking = asyncio.create_task(backend.count_after())
        whole.deaf.add("c")
        await settle()
        whole.leave("c")
        assert await asking is None and backend.live_calls == 1
        assert await backend.count_before()
        assert await backend.count_after() is not None, "the others are enough from now on"

    run(test)


def test_a_backend_that_a_reload_has_replaced_is_not_the_quarantined_one_for_members_that_join_later() -> None:
    async def test() -> None:
        whole, loop = Whole("a", "b"), asyncio.get_running_loop()
        await settle()
        host: Any = SimpleNamespace(load_changed=lambda backend: None)
        reaper = Reaper(Aborts(), host, 9, whole.peers["a"])
        settings, limits = BackendSettings(url="http://127.0.0.1:9", name="gpu"), LimitSettings()
        old = Backend(settings, limits, loop, has_peers=True)
        reaper.watch(old)
        watch = reaper._watches[old]
        assert await whole.peers["a"].may_take("gpu", {"rung": "quarantined"}, [])
        watch._apply_health_event(HealthEvent.QUARANTINED)
        await settle()
        assert whole.reapers["b"].trust == {"gpu": Trust.QUARANTINED}
        reaper.watch(Backend(settings, limits, loop, has_peers=True))  # as a reload does, which changes its weight, say
        old.load.health.apply(HealthEvent.RETIRED)
        watch._apply_health_event(HealthEvent.TAKEN_BACK)
        watch._apply_health_event(HealthEvent.QUARANTINED)  # it still has calls, and its name
        await settle()
        assert whole.reapers["b"].trust == {"gpu": Trust.TRUSTED}
        whole.reapers["b"].trust.clear()
        whole.join("b")  # as a new process
        whole.leave("a")
        await settle()
        assert whole.reapers["b"].trust == {} and whole.reapers["b"].led[-1][1] == {}
        await reaper.close()

    run(test)


def test_nothing_is_kept_of_backends_that_were_removed() -> None:
    """Addresses behind a DNS name come and go, each as a backend of its own."""

    async def test() -> None:
        whole, loop = Whole("a", "b"), asyncio.get_running_loop()
        await settle()
        host: Any = SimpleNamespace(load_changed=lambda backend: None)
        reaper = Reaper(Aborts(), host, 9, whole.peers["a"])
        for number in range(3):
            backend = Backend(
                BackendSettings(url="http://127.0.0.1:9", name=f"gpu-{number}"), LimitSettings(), loop, has_peers=True
            )
            reaper.watch(backend)
            await settle()
            assert await whole.peers["a"].may_take(backend.name, {"rung": "quarantined"}, [])
            reaper._watches[backend]._apply_health_event(HealthEvent.QUARANTINED)
            if number:  # the first one stays until another process leads, which does not know it
                await reaper.forget(backend)
            await settle()
        assert whole.hub.records.steps.keys() == whole.hub._trust.keys() == {"gpu-0"}
        whole.leave("a")
        await settle()
        assert whole.reapers["b"].led[-1][1].keys() == {"gpu-0"}
        assert not whole.hub.records.steps and not whole.hub._trust
        await reaper.close()

    run(test)
