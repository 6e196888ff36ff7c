"""The job store with faults: each operation on the file may fail, hang, or be the last of its process."""

from __future__ import annotations

import random
import sqlite3
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from hangup.gateway.store.database import Database, _open
from hangup.gateway.store.jobs import JobStore
from hangup.gateway.store.jobs.clock import ClockTable
from hangup.gateway.store.jobs.events import EventTable
from hangup.gateway.store.jobs.files import FileTable
from hangup.gateway.store.jobs.schema import MIGRATIONS
from hangup.gateway.store.jobs.table import JobTable
from hangup.gateway.store.jobs.workers import WorkerTable
from support.virtual import Loop, Process

ERRORS: dict[str, Callable[[], Exception]] = {
    "full": lambda: sqlite3.OperationalError("database or disk is full"),
    "locked": lambda: sqlite3.OperationalError("database is locked"),
    "damaged": lambda: sqlite3.DatabaseError("database disk image is malformed"),
}
KINDS = (*ERRORS, "killed before", "killed after", "hangs")
# There is also `applied`: the operation succeeds but reports a failure. SQLite does not do that, so it is not one of the kinds:
# an unacknowledged batch could then wait for the check of its lines until its process ends.
_HANGS_S = 8.0


class Around(Protocol):
    """The world around the store."""

    loop: Loop
    chance: random.Random
    faults: Faults

    def look(self, db: sqlite3.Connection) -> None:
        """A transaction has ended."""

    def kill(self, process: Process) -> None: ...


class Killed(BaseException):
    """Raised where the process is killed."""


@dataclass
class Faults:
    """Faults of operations on the store. `plan` names the fault of the nth operation, counted over all processes."""

    plan: dict[int, str] = field(default_factory=dict)
    count: int = 0
    chance: random.Random | None = None  # for operations that are not in the plan
    rate: float = 0.0
    happened: list[str] = field(default_factory=list)

    def next(self, statement: str) -> str | None:
        self.count += 1
        kind = self.plan.get(self.count)
        if kind is None and self.chance is not None and self.chance.random() < self.rate:
            kind = self.chance.choice(KINDS)
        if kind is not None:
            self.happened.append(f"{kind} at {self.count}: {statement[:60]}")
        return kind


class Connection:
    """SQLite's connection, with faults."""

    def __init__(self, real: sqlite3.Connection, world: Around, process: Process) -> None:
        self.real = real
        self._world, self._process = world, process
        self.hangs_s = 0.0  # before the next transaction
        real.execute("PRAGMA synchronous = OFF")
        real.execute("PRAGMA busy_timeout = 0")  # waiting is pointless: no other process runs meanwhile

    @property
    def in_transaction(self) -> bool:
        return self.real.in_transaction

    def execute(self, statement: str, *values: Any) -> Any:
        return self._run(statement, lambda: self.real.execute(statement, *values))

    def executemany(self, statement: str, rows: Any) -> Any:
        return self._run(statement, lambda: self.real.executemany(statement, rows))

    def _run(self, statement: str, work: Callable[[], Any]) -> Any:
        kind = self._world.faults.next(statement)
        if kind in ERRORS:
            raise ERRORS[kind]()
        if kind == "killed before":
            raise Killed
        if kind == "hangs":
            self.hangs_s = _HANGS_S
        result = work()
        if statement == "COMMIT":
            self._world.look(self.real)
        if kind == "killed after":
            raise Killed
        if kind == "applied" and statement == "COMMIT":
            raise ERRORS["full"]()
        return result

    def close(self) -> None:
        self.real.close()


class SimDatabase(Database):
    """The real database's transactions, run by the event loop instead of a thread."""

    def __init__(self, path: str, world: Around, process: Process) -> None:
        self.db: Any = Connection(_open(path, MIGRATIONS), world, process)
        self._work = deque()
        self._closing = False
        self._world, self._process = world, process
        self._turning = False
        self._wake: Any = SimpleNamespace(set=self._turn_soon)
        self._thread: Any = SimpleNamespace(join=self._last_turn, is_alive=lambda: False)

    def _turn_soon(self) -> None:
        if not self._turning and not self._closing:
            self._turning = True
            pause = self._world.chance.choice([0.0, 0.001, 0.01]) + self.db.hangs_s
            self.db.hangs_s = 0.0
            self._world.loop.call_later(pause, self._turn)

    def _turn(self) -> None:
        self._turning = False
        batch = [self._work.popleft() for _ in range(min(len(self._work), 4))]
        try:
            if batch:
                self._run_and_answer(batch)
        except Killed:
            self._world.kill(self._process)
            return
        if self._work:
            self._turn_soon()

    def _last_turn(self, timeout: float) -> None:
        while self._work:
            self._run_and_answer([self._work.popleft()])


class SimStore(JobStore):
    def __init__(self, path: str, world: Around, process: Process) -> None:
        self._database = SimDatabase(path, world, process)
        db = self._database.db
        self.jobs, self.files = JobTable(db), FileTable(db)
        self.workers, self.clock, self.events = WorkerTable(db), ClockTable(db), EventTable(db)
