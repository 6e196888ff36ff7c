"""The lines between members and their leader: whatever is lost, a member's answer counts only after all that it said before."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hangup.core.members import EndedCall, StopFinding, StopRecords
from hangup.gateway.hosts.lines import HELLO, HubLine, MemberLines


class World:
    """A member that says what it has, numbered, over a post that loses things, and a leader that notes what it hears."""

    def __init__(self, seed: int, loss: float) -> None:
        self.random, self.loss = random.Random(seed), loss
        self.said = 0  # the latest thing that the member said
        self.heard = 0  # and that the leader heard, counted without a gap since the last hello
        self.told = self.understood = 0
        self.hellos = 0
        self.mail: list[tuple[str, dict[str, Any]]] = []
        self.line = HubLine("member", self._post, self._take_told, self._say_all)
        self.lines = MemberLines("leader", 7, self._post, self._take_said)

    def _post(self, to: str, entry: dict[str, Any]) -> None:
        if self.random.random() >= self.loss:
            self.mail.append((to, entry))

    def _say_all(self) -> None:
        self.line.send("all", {"said": self.said})

    def _take_said(self, member: str, kind: str, fields: dict[str, Any]) -> None:
        if kind == HELLO:
            self.hellos += 1
            self.lines.tell(member, "welcome", {"told": self.told})
        elif kind == "all":
            self.heard = fields["said"]
        else:
            assert fields["said"] == self.heard + 1, "something before it is missing"
            self.heard += 1

    def _take_told(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "welcome":
            self.understood = fields["told"]
        else:
            assert fields["told"] == self.understood + 1, "something before it is missing"
            self.understood += 1

    def act(self) -> None:
        if self.random.random() < 0.5:
            self.said += 1
            self.line.send("said", {"said": self.said})
        else:
            self.told += 1
            self.lines.tell("member", "told", {"told": self.told})

    async def deliver(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)
            mail, self.mail = self.mail, []
            for to, entry in mail:
                (self.line if to == "member" else self.lines).receive(entry)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.5]))
def test_nothing_counts_after_a_loss_until_everything_was_said_again(seed: int, loss: float) -> None:
    async def play() -> None:
        world = World(seed, loss)
        world.line.follow("leader", 7)
        for _ in range(60):
            world.act()
            if world.random.random() < 0.5:
                await world.deliver()
        world.loss = 0.0
        for _ in range(4):  # whatever was lost last is noticed by what follows
            world.act()
            world.said += 1
            world.line.send("said", {"said": world.said})
            await world.deliver()
            await world.deliver()
        world.told += 1
        world.lines.tell("member", "told", {"told": world.told})
        await world.deliver()
        assert (world.heard, world.understood) == (world.said, world.told)
        assert loss or world.hellos == 1

    asyncio.run(play())


def test_a_leader_of_another_term_is_not_heard() -> None:
    async def play() -> None:
        world = World(1, 0.0)
        world.line.follow("leader", 8)  # it has not heard of the leader of term 7, or forgotten it
        await world.deliver()
        world.lines.tell("member", "told", {"told": 5})
        await world.deliver()
        assert world.understood == 0

    asyncio.run(play())


def call(key: str) -> EndedCall:
    return EndedCall(key, "gpu", f"call-{key}", 0.0, False, 0, 1, None, False, "t", "m", "client_gone")


def test_the_copy_of_the_records_follows_them_and_the_next_hub_goes_on_from_it() -> None:
    records = StopRecords(copied=True)
    records.add("a", [call("1"), call("2")], 10.0)
    records.take("gpu", {"rung": "degraded"})
    first = records.take_changes(11.0)
    assert first is not None and not first.whole and [row.key for row in first.calls] == ["1", "2"]
    assert first.steps == {"gpu": {"rung": "degraded"}} and records.take_changes(11.0) is None
    zombie = call("2")._replace(zombie=True, aborts=1, member="a")
    records.found("leader", [StopFinding(call("1"), "verified"), StopFinding(zombie, "zombie")], 12.0)
    second = records.take_changes(12.0)
    assert second is not None and second.closed == [("gpu", "1")]
    assert [(row.key, row.zombie, row.aborts) for row in second.calls] == [("2", True, 1)]
    records.copy_lost()
    third = records.take_changes(13.0)
    assert third is not None and third.whole and [row.key for row in third.calls] == ["2"] and third.steps == first.steps
    successor = StopRecords(copied=True)
    successor.restore(third.calls, third.steps, 0.0)
    assert [(row.key, row.zombie, row.member) for row in successor.open_calls(0.0)] == [("2", True, "a")]
    assert successor.steps == records.steps and successor.take_changes(0.0) is None
    assert not successor.add("a", [call("2")], 0.0), "a member that says everything again changes nothing"


def test_without_a_copy_nothing_is_noted_for_one() -> None:
    records = StopRecords()
    records.add("a", [call("1")], 0.0)
    records.take("gpu", {"rung": "degraded"})
    assert records.take_changes(0.0) is None
