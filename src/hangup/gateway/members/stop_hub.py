"""The hub's part in the judgement of engines: passes ended calls on to the leader and its findings back, and asks all members
on its behalf."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from hangup.core.admission import Trust
from hangup.core.members import EndedCall, Members, StopRecords
from hangup.gateway.members.peers import ANSWER_S, finding_of

Tell = Callable[[str, str, dict[str, Any]], None]  # a member, the kind of the message, and its fields
Reply = Callable[[bool], None]


class _Question:
    """A question of the leader that members have not all answered yet."""

    __slots__ = ("asked_by", "expected", "number", "rows", "timer")

    def __init__(self, asked_by: str, number: int, expected: tuple[str, ...]) -> None:
        self.asked_by = asked_by
        self.number = number  # of the leader's request
        self.expected = expected
        self.rows: dict[str, Any] = {}
        self.timer: asyncio.TimerHandle | None = None


class StopHub:
    """`tell` sends a message to a member, or drops it if that member is gone. `save` keeps a copy of the records, for the case
    that this process dies, and then replies whether it could; without it, the hub lives as long as the members."""

    def __init__(self, tell: Tell, members: Members, save: Callable[[Reply], None] | None = None) -> None:
        self._tell = tell
        self._members = members
        self._save = save
        self.records = StopRecords(copied=save is not None)
        self._trust: dict[str, str] = {}  # by backend
        self._announced_term = 0  # the term that all members know
        self._asked = 0
        self._questions: dict[int, _Question] = {}

    def close(self) -> None:
        for question in self._questions.values():
            if question.timer is not None:
                question.timer.cancel()
        self._questions.clear()

    # Who is there

    def joined(self, member: str) -> None:
        """Tell a new member what it must know. Call this after it has joined."""
        if self._trust:
            self._tell(member, "trust", {"trust": self._trust})
        self.follow_leader()

    def left(self, member: str, *, died: bool) -> None:
        """Go on without a member. Call this after it has left."""
        self.follow_leader()
        leader = self._members.leader
        if died and leader is not None:
            self._tell(leader, "member_died", {})
        for number, question in list(self._questions.items()):
            if member == question.asked_by:
                self._end(number)
            elif member in question.expected:
                self._answer_if_over(number, gone=member)

    def follow_leader(self) -> None:
        """Tell all who judges the engines, if that has changed."""
        term = self._members.term
        if term == self._announced_term:
            return
        self._announced_term = term
        for member in self._members.names:
            self.tell_leader(member)

    def tell_leader(self, member: str) -> None:
        """Tell a member who judges the engines; the leader itself, all that it must know for that."""
        leads = member == self._members.leader
        fields: dict[str, Any] = {"term": self._members.term, "leads": leads}
        if leads:
            fields |= {
                "calls": [call.row() for call in self.records.open_calls(time.monotonic())],
                "steps": self.records.steps,
            }
        self._tell(member, "leader", fields)

    def is_open(self, backend: str, key: str) -> bool:
        """Return whether a call is known to have ended, and not to have stopped."""
        return self.records.is_open(backend, key)

    # Messages of members

    def handle(self, member: str, kind: str, message: dict[str, Any]) -> bool:
        """Handle a message of a member; return False if it is about something else."""
        handler = self._HANDLERS.get(kind)
        if handler is not None:
            handler(self, member, message)
        return handler is not None

    def leads(self, member: str, message: dict[str, Any]) -> bool:
        """Return whether the message is by who leads now, and not by who led before and woke up late."""
        return member == self._members.leader and message["term"] == self._members.term

    def _ended(self, member: str, message: dict[str, Any]) -> None:
        new = self.records.add(member, (EndedCall(*row) for row in message["calls"]), time.monotonic())
        leader = self._members.leader
        if new and leader is not None and leader != member:
            self._tell(leader, "ended", {"calls": [call.row() for call in new]})

    def _found(self, member: str, message: dict[str, Any]) -> None:
        if self.leads(member, message):
            self._note_found(member, message["rows"])

    def _note_found(self, leader: str, rows: list[list[Any]]) -> None:
        for owner, news in self.records.found(leader, map(finding_of, rows), time.monotonic()).items():
            self._tell(owner, "found", {"rows": [row.row() for row in news]})

    def _take_trust(self, member: str, message: dict[str, Any]) -> None:
        if self.leads(member, message):
            self._trust[message["backend"]] = message["trust"]
            self._pass_on_trust(member, message["backend"], message["trust"])

    def _pass_on_trust(self, leader: str, backend: str, trust: str) -> None:
        for other in self._members.names:
            if other != leader:
                self._tell(other, "trust", {"trust": {backend: trust}})

    def _replaced(self, member: str, message: dict[str, Any]) -> None:
        """Forget what was known of an engine, or members that join later would take the new one for the old one."""
        if self.leads(member, message):
            self._trust.pop(message["backend"], None)
            self.records.forget_steps(message["backend"])
            self._pass_on_trust(member, message["backend"], Trust.TRUSTED.value)

    def _step(self, member: str, message: dict[str, Any]) -> None:
        def reply(ok: bool) -> None:
            self._tell(member, "step_noted", {"number": message["number"], "ok": ok})

        ok = self.leads(member, message)
        if ok:
            self.records.take(message["backend"], message["step"])
            self._note_found(member, message["rows"])
        if ok and self._save is not None:
            self._save(reply)
        else:
            reply(ok)

    def _ask_all(self, member: str, message: dict[str, Any]) -> None:
        if not self.leads(member, message):  # it woke up late: the others take no calls away because of what it believed
            self._tell(member, "answers", {"number": message["number"], "expected": (member,), "rows": {}})
            return
        self._asked += 1
        number = self._asked
        others = tuple(name for name in self._members.names if name != member)
        question = self._questions[number] = _Question(member, message["number"], others)
        for other in others:
            fields = {name: message[name] for name in ("term", "what", "backend", "fields")}
            self._tell(other, "question", {"number": number, **fields})
        question.timer = asyncio.get_running_loop().call_later(ANSWER_S, self._end, number)
        self._answer_if_over(number)

    def _answer(self, member: str, message: dict[str, Any]) -> None:
        question = self._questions.get(message["number"])
        if question is not None:
            question.rows[member] = message["row"]
            self._answer_if_over(message["number"])

    def _answer_if_over(self, number: int, gone: str = "") -> None:
        question = self._questions[number]
        if all(name in question.rows or name == gone for name in question.expected):
            self._end(number)

    def _end(self, number: int) -> None:
        """Answer a question with what was said. A member that left is still expected: nothing is known of its calls."""
        question = self._questions.pop(number)
        if question.timer is not None:
            question.timer.cancel()
        answer = {"number": question.number, "expected": question.expected, "rows": question.rows}
        self._tell(question.asked_by, "answers", answer)

    _HANDLERS: Mapping[str, Callable[[StopHub, str, dict[str, Any]], None]] = {
        "ended": _ended,
        "found": _found,
        "trust": _take_trust,
        "replaced": _replaced,
        "step": _step,
        "ask_all": _ask_all,
        "answer_leader": _answer,
    }
