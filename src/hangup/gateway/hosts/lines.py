"""The messages between gateways and their leader about ended calls, each a batch in the other's mail.

    member ── 1: hello, all my ended calls ──▶ leader (the hub, `gateway/members/stop_hub.py`)
           ◀── 1: who leads, what to trust ───┘
           ── 2, 3, …: what ended since, answers ──▶
           ◀── 2, 3, …: questions, findings ─────┘

If a batch is missing at either end, the member opens another line, and says everything again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hangup.core.members.line import Line

HELLO = "hello"
Entry = dict[str, Any]
Message = tuple[str, dict[str, Any]]  # its kind and its fields
Post = Callable[[str, Entry], None]  # to whom
_AGAIN = 0  # a number that no batch has: whoever gets it opens another line


class HubLine:
    """A member's line to the leader."""

    def __init__(self, me: str, post: Post, take: Callable[[str, dict[str, Any]], object], say_all: Callable[[], None]) -> None:
        """`take` handles a message of the leader; `say_all` sends all that a leader must know."""
        self._me = me
        self._post, self._take, self._say_all = post, take, say_all
        self._leader: tuple[str, int] | None = None  # its name and its term
        self._line = Line(0)
        self._unsent: list[Message] = []
        self._flush: asyncio.Handle | None = None

    def follow(self, leader: str, term: int) -> None:
        """Open a line to this leader, unless there is one."""
        if self._leader != (leader, term):
            self._leader = leader, term
            self._open()

    def close(self) -> None:
        self._leader = None
        self._unsent.clear()
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None

    def send(self, kind: str, fields: dict[str, Any]) -> None:
        """Send a message; without a leader it is dropped, because the next line begins with everything."""
        if self._leader is not None:
            self._unsent.append((kind, fields))
            if self._flush is None:
                self._flush = asyncio.get_running_loop().call_soon(self._send)

    def receive(self, entry: Entry) -> None:
        if (entry["from"], entry["term"]) != self._leader or entry["line"] != self._line.session:
            return
        if not self._line.accept(entry["n"]):
            self._open()
            return
        for kind, fields in entry["messages"]:
            self._take(kind, fields)

    def _open(self) -> None:
        self._line = Line(self._line.session + 1)
        self._unsent.clear()
        self.send(HELLO, {})
        self._say_all()

    def _send(self) -> None:
        self._flush = None
        if self._leader is not None and self._unsent:
            leader, term = self._leader
            line, messages, self._unsent = self._line, self._unsent, []
            self._post(leader, entry_of(self._me, term, line.session, line.next_number(), messages, to_leader=True))


class MemberLines:
    """The leader's lines to the other members."""

    def __init__(self, me: str, term: int, post: Post, take: Callable[[str, str, dict[str, Any]], object]) -> None:
        """`take` handles a message of a member, of which a `HELLO` is the first."""
        self._me, self._term = me, term
        self._post, self._take = post, take
        self._lines: dict[str, Line] = {}
        self._unsent: dict[str, list[Message]] = {}
        self._flush: asyncio.Handle | None = None

    def close(self) -> None:
        self._lines.clear()
        self._unsent.clear()
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None

    def drop(self, member: str) -> None:
        """End the line of a member that is gone."""
        self._lines.pop(member, None)
        self._unsent.pop(member, None)

    def tell(self, member: str, kind: str, fields: dict[str, Any]) -> None:
        """Send a message to a member; one without a line learns everything when it opens one."""
        if member in self._lines:
            self._unsent.setdefault(member, []).append((kind, fields))
            if self._flush is None:
                self._flush = asyncio.get_running_loop().call_soon(self._send)

    def receive(self, entry: Entry) -> None:
        member, line = entry["from"], self._lines.get(entry["from"])
        if entry["n"] == 1:
            line = self._lines[member] = Line(entry["line"])
            self._unsent.pop(member, None)
        if line is None or line.session != entry["line"] or not line.accept(entry["n"]):
            if line is None or entry["line"] >= line.session:  # else it is outdated
                self.drop(member)
                self._post(member, entry_of(self._me, self._term, entry["line"], _AGAIN, []))
            return
        for kind, fields in entry["messages"]:
            self._take(member, kind, fields)

    def _send(self) -> None:
        self._flush = None
        unsent, self._unsent = self._unsent, {}
        for member, messages in unsent.items():
            line = self._lines[member]
            self._post(member, entry_of(self._me, self._term, line.session, line.next_number(), messages))


def entry_of(sender: str, term: int, session: int, number: int, messages: list[Message], *, to_leader: bool = False) -> Entry:
    return {"from": sender, "term": term, "line": session, "n": number, "messages": messages, "to_leader": to_leader}
