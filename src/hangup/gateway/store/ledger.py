"""Stores the ledger on disk: what calls cost and delivered, per minute, tenant, model, backend and cause.

The data path only adds a call to an account in memory. A thread takes all accounts every `ledger_flush_s` and writes them in
one transaction. A killed process loses at most that batch, and WAL keeps the file consistent.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, TypeVar

from hangup.core.account import Account, Entry, Price
from hangup.core.call import Call
from hangup.core.clocks import SteadyClock
from hangup.core.reasons import Outcome
from hangup.errors import HangupError, LedgerBusy
from hangup.gateway.store.database import WAL_BYTES_MAX, closed_on_error, file_identity, is_lock
from hangup.tasks import TASKS

_Accounts = dict[tuple[int, str, str, str, str], Account]  # keyed by minute and `GROUPS`
T = TypeVar("T")
GROUPS = ("tenant", "model", "backend", "cause")
SUMS = tuple(field.name for field in fields(Account))
_MODELS_MAX = 1000  # clients choose model names: names beyond this limit, within an hour, are summed as `_OTHER`
_UNSERVED_MODELS_MAX = 100  # the limit for names that no engine has served: invented names must not displace real ones
_MODEL_CHARS_MAX = 200
_OTHER = "(other)"
_VERSION = 1
_OPEN_BUSY_S, _BUSY_S = 5.0, 2.0  # how long to wait while another process holds the file's lock, at the start and later
# A transaction that takes this long, which is longer than any wait for the lock, has a disk that hangs: reports and the end of
# the process go on without it.
_HANGING_S = 5.0
_CLOSE_S = 10.0  # for the last write, while another process holds the lock
_LOCK_PAUSE_S = 0.05  # between attempts, for a lock that SQLite does not wait for itself
_FIRST_SWEEP_S, _RETENTION_EVERY_S = 1.0, 3600.0
_DELETED_MINUTES = 1440  # deleted per transaction
_COUNTS_WAITING_MAX = 10_000  # engine counts held in memory while the file cannot be written
_USED_BYTES = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
_EXACT_MAX = 2.0**53  # above this, floats no longer represent every integer, and sums are inexact
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS spent (
    minute INTEGER NOT NULL, {", ".join(f"{name} TEXT NOT NULL" for name in GROUPS)},
    {", ".join(f"{name} REAL NOT NULL DEFAULT 0" for name in SUMS)},
    PRIMARY KEY (minute, {", ".join(GROUPS)})
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS computed (
    minute INTEGER NOT NULL, backend TEXT NOT NULL, tokens INTEGER NOT NULL,
    PRIMARY KEY (minute, backend)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uncounted (
    minute INTEGER NOT NULL, backend TEXT NOT NULL, tokens INTEGER NOT NULL,
    PRIMARY KEY (minute, backend)
) WITHOUT ROWID;
"""
_INSERT_SPENT = (
    f"INSERT INTO spent VALUES (?, {', '.join('?' * (len(GROUPS) + len(SUMS)))})"  # noqa: S608 - names of ours
    f" ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in SUMS)}"
)
_COUNT_TABLES = ("computed", "uncounted")  # tokens reported by engines, and lost with an engine before its report
_MINUTES = """
SELECT min(first), max(last) FROM (
    SELECT min(minute) AS first, max(minute) AS last FROM spent
    UNION ALL SELECT min(minute), max(minute) FROM computed
    UNION ALL SELECT min(minute), max(minute) FROM uncounted
)"""
_INSERT_COUNT = {
    table: f"INSERT INTO {table} VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET tokens = tokens + excluded.tokens"  # noqa: S608
    for table in _COUNT_TABLES
}


class LedgerStore:
    """The ledger's file and its writer thread. An empty `path` means in memory: the data dies with the process."""

    def __init__(
        self,
        path: str,
        *,
        flush_s: float,
        days: float,
        accounts_max: int,
        bytes_max: int = 1024**3,
        wal_bytes_max: int = WAL_BYTES_MAX,
        clock: Callable[[], float] = time.time,
        log_event: Callable[..., None] = lambda event, **fields: None,
    ) -> None:
        """`log_event` receives log events about a file that cannot be written; it may be called in any thread."""
        self.dropped = 0
        self.flush_s = flush_s
        self._days = days
        self._accounts_max = accounts_max
        self._bytes_max = bytes_max
        self._wal_bytes_max = wal_bytes_max
        self._clock = clock
        self._accounts: _Accounts = {}
        self._accounts_lock = threading.Lock()  # guards the accounts: held to record one call, or to take all accounts
        self._counts: dict[str, deque[tuple[int, str, int]]] = {table: deque() for table in _COUNT_TABLES}
        self._models: set[str] = set()
        self._unserved_models: set[str] = set()
        self._db_lock = threading.Lock()  # guards the database: for the writer thread and reports, never on the data path
        self._path = str(Path(path).expanduser()) if path else ""
        self._db = _open(path, wal_bytes_max, _OPEN_BUSY_S)
        self._identity = file_identity(self._path)
        self._sweep_at = time.monotonic() + _FIRST_SWEEP_S
        self._steady_clock = SteadyClock(_newest_time(self._db), clock(), time.monotonic())
        self.failing = False  # the file cannot be written: booked calls wait in memory
        self._in_doubt = 0  # calls in the write that is under way
        self._locked = False  # the last failure was the lock of another process
        self._log_event = log_event
        self._closing = threading.Event()
        self._thread = TASKS.thread("ledger", self._run)

    # From the event loop

    def add_call(self, call: Call, engine_s: float, predicted_tokens: float, price: Price) -> None:
        """Add an ended call, with its share of the engine's time."""
        assert call.reason is not None
        model = call.model if call.model in self._models else self._model_name(call.model, _was_served(call))
        key = (int(self._clock() // 60), call.tenant, model, call.backend, call.reason.outcome)  # an outcome is a text
        with self._accounts_lock:
            account = self._accounts.get(key) or self._account_for(key)
            if account is not None:
                account.add_call(call, engine_s, predicted_tokens, price)

    def add(self, entry: Entry) -> None:
        """Add an entry that is not booked when a call ends."""
        key = (
            int(self._clock() // 60),
            entry.tenant,
            self._model_name(entry.model, bool(entry.account.tokens_delivered)),
            entry.backend,
            entry.cause,
        )
        with self._accounts_lock:
            account = self._account_for(key)
            if account is not None:
                account.add(entry.account)

    def _account_for(self, key: tuple[int, str, str, str, str]) -> Account | None:
        """Return the account for `key`, creating it if needed; return None and count a drop if there are too many."""
        if len(self._accounts) >= self._accounts_max and key not in self._accounts:
            self.dropped += 1
            return None
        return self._accounts.setdefault(key, Account())

    def _model_name(self, model: str, served: bool) -> str:
        if model in self._models:
            return model
        model = model[:_MODEL_CHARS_MAX]
        known, most = (self._models, _MODELS_MAX) if served else (self._unserved_models, _UNSERVED_MODELS_MAX)
        if model not in known and model not in self._models:
            if len(known) >= most:
                return _OTHER
            known.add(model)
        return model

    def add_computed(self, backend: str, tokens: int) -> None:
        """Add the tokens that a backend reports to have computed since its last report."""
        self._count("computed", backend, tokens)

    def add_uncounted(self, backend: str, tokens: int) -> None:
        """Add tokens that a backend delivered but never reported, because its counters died with it."""
        self._count("uncounted", backend, tokens)

    def _count(self, table: str, backend: str, tokens: int) -> None:
        if tokens:
            self._counts[table].append((int(self._clock() // 60), backend, int(_bounded(tokens))))

    # From any thread

    def report(self, since_s: float, by: str) -> dict[str, Any]:
        """Return sums over the last `since_s` seconds; write pending accounts first, so that they are included."""
        if by not in GROUPS:
            raise HangupError(f"by: expected one of {', '.join(GROUPS)}, got {by!r}")
        first = int((self._clock() - since_s) // 60)
        sums = ", ".join(f"sum({name})" for name in SUMS)
        with self._use_file():
            self._write()
            rows = self._db.execute(
                f"SELECT {by}, {sums} FROM spent WHERE minute >= ? GROUP BY {by} ORDER BY sum(engine_s) DESC",  # noqa: S608
                (first,),
            ).fetchall()
            recorded = dict(
                self._db.execute(
                    "SELECT backend, sum(tokens_delivered + tokens_wasted) FROM spent WHERE minute >= ? GROUP BY backend",
                    (first,),
                )
            )
            computed, uncounted = (
                dict(
                    self._db.execute(
                        f"SELECT backend, sum(tokens) FROM {table} WHERE minute >= ? GROUP BY backend",  # noqa: S608
                        (first,),
                    )
                )
                for table in _COUNT_TABLES
            )
        named = [{by: row[0], **dict(zip(SUMS, map(_rounded, SUMS, row[1:]), strict=True))} for row in rows]
        total = {name: _rounded(name, sum(row[at] for row in rows)) for at, name in enumerate(SUMS, 1)}
        engines = {
            name: {"computed": tokens, "uncounted": uncounted.get(name, 0), "booked": int(recorded.get(name, 0))}
            for name, tokens in computed.items()
        }
        return {"by": by, "since_s": since_s, "rows": named, "total": total, "engines": engines}

    def close(self) -> None:
        """Write the remaining accounts and close the file. If the disk hangs or another process does not release its lock,
        leave both, so that the process can end, and log what is lost."""
        until = time.monotonic() + _CLOSE_S
        self._closing.set()
        self._thread.join(timeout=_HANGING_S)
        try:
            with self._use_file():
                while not self._write() and self._locked and time.monotonic() < until:
                    time.sleep(_LOCK_PAUSE_S)
                self._db.close()
        except LedgerBusy as busy:
            self._report_failure(busy)
        with self._accounts_lock:
            lost = _calls_of(self._accounts)
        self.dropped += lost
        if lost or self._in_doubt:
            self._log_event("ledger_entries_lost", calls=lost, in_doubt=self._in_doubt)

    @contextlib.contextmanager
    def _use_file(self) -> Iterator[None]:
        """Hold the database; raise `LedgerBusy` if whoever holds it does not let go, because the disk hangs."""
        if not self._db_lock.acquire(timeout=_HANGING_S):
            raise LedgerBusy(f"the ledger's disk did not answer for {_HANGING_S:g} s")
        try:
            yield
        finally:
            self._db_lock.release()

    # In the writer thread

    def _run(self) -> None:
        """Write every `flush_s`. A full or damaged file delays writes and is logged, but never ends the loop."""
        while not self._closing.wait(self.flush_s):
            with TASKS.working("ledger"), self._db_lock:
                self._write()
            if self._closing.is_set():  # `close` waits: nothing that may take long is begun
                return
            try:
                self._delete_expired()
            except Exception as error:
                self._report_failure(error)

    def _write(self) -> bool:
        """Write all accounts; return False, and keep them, if that is not possible now."""
        with self._accounts_lock:
            accounts, self._accounts = self._accounts, {}
        counts = {table: list(_drain(waiting)) for table, waiting in self._counts.items()}
        if not accounts and not any(counts.values()):
            return True
        self._in_doubt = _calls_of(accounts)
        try:
            self._prepare()
            with self._db:
                spent = [(*key, *map(_bounded, astuple(account))) for key, account in accounts.items()]
                self._db.executemany(_INSERT_SPENT, spent)
                for table, rows in counts.items():
                    self._db.executemany(_INSERT_COUNT[table], rows)
        except Exception as error:  # a full disk must not stop the gateway
            self._put_back(accounts, counts)
            self._locked = isinstance(error, LedgerBusy) or is_lock(error)
            self._report_failure(error)
            return False
        finally:
            self._in_doubt = 0
        if self.failing:
            self.failing = False
            self._log_event("ledger_recovered")
        return True

    def _prepare(self) -> None:
        """Roll back an open transaction and reopen a deleted file.

        Otherwise accounts would be booked twice, or written to a file that nobody can read.
        """
        self._roll_back()
        if file_identity(self._path) != self._identity:
            opened = _open(self._path, self._wal_bytes_max, _BUSY_S)
            self._db.close()
            self._db, self._identity = opened, file_identity(self._path)
            self._log_event("ledger_reopened", path=self._path)

    def _roll_back(self) -> None:
        """Drop a transaction that an earlier failure left open: a commit of other work would write it as well."""
        if self._db.in_transaction:
            self._db.rollback()

    def _put_back(self, accounts: _Accounts, counts: dict[str, list[tuple[int, str, int]]]) -> None:
        """Merge unwritten accounts into the next batch; beyond the limit, only count the dropped calls."""
        with self._accounts_lock:
            for key, account in accounts.items():
                waiting = self._accounts.get(key)
                if waiting is not None:
                    waiting.add(account)
                elif len(self._accounts) < self._accounts_max:
                    self._accounts[key] = account
                else:
                    self.dropped += account.calls
        for table, rows in counts.items():
            self._counts[table].extendleft(reversed(rows[-_COUNTS_WAITING_MAX:]))

    def _report_failure(self, error: Exception) -> None:
        if not self.failing:
            self.failing = True
            self._log_event("ledger_failed", error=str(error))

    def _delete_expired(self) -> None:
        now = time.monotonic()
        if now < self._sweep_at:
            return
        self._sweep_at = now + _RETENTION_EVERY_S
        self._models, self._unserved_models = set(), set()  # those in use come back; invented ones no longer take their room
        oldest = int((self._steady_clock.at(self._clock(), now) - self._days * 86400) // 60)
        for table in ("spent", *_COUNT_TABLES):
            while self._delete_some_expired(table, oldest):  # releases the lock between deletions, so that reports can run
                pass
        while self._forget_for_room():
            pass

    def _forget_for_room(self) -> bool:
        """Delete the oldest entries of a ledger that is too large; return whether that may not have been enough."""
        with TASKS.working("ledger"), self._db_lock:
            self._roll_back()
            (used,) = self._db.execute(_USED_BYTES).fetchone()
            first, last = self._db.execute(_MINUTES).fetchone()
            if used <= self._bytes_max or first is None or first == last:
                return False
            with self._db:
                until = first + max((last - first) // 10, 1)
                for table in ("spent", *_COUNT_TABLES):
                    self._db.execute(f"DELETE FROM {table} WHERE minute < ?", (until,))  # noqa: S608 - names of ours
        self._log_event("ledger_full", bytes=used, deleted_until=until * 60)
        return True

    def _delete_some_expired(self, table: str, oldest: int) -> bool:
        with TASKS.working("ledger"), self._db_lock:
            self._roll_back()
            with self._db:
                (first,) = self._db.execute(f"SELECT min(minute) FROM {table}").fetchone()  # noqa: S608 - names of ours
                if first is None or first >= oldest:
                    return False
                until = min(first + _DELETED_MINUTES, oldest)
                self._db.execute(f"DELETE FROM {table} WHERE minute < ?", (until,))  # noqa: S608 - names of ours
                return bool(until < oldest)


def _calls_of(accounts: _Accounts) -> int:
    return int(sum(account.calls for account in accounts.values()))


def _was_served(call: Call) -> bool:
    """Return whether an engine knows the model: it produced tokens, or answered with 200."""
    return bool(call.tokens_out) or (call.outcome is Outcome.COMPLETED and call.status == 200)


def create_ledger(path: str, wal_bytes_max: int) -> None:
    """Create the file, or bring it up to date, before several processes open it at once."""
    _open(path, wal_bytes_max).close()


def _open(path: str, wal_bytes_max: int, busy_s: float = _BUSY_S) -> sqlite3.Connection:
    """Open the file; wait up to `busy_s` for the lock of another process, and up to `_BUSY_S` for each later one."""
    try:
        if path:
            Path(path).expanduser().parent.mkdir(parents=True, exist_ok=True)
            Path(path).expanduser().touch(mode=0o600)  # usage and cost per tenant are private
        target = str(Path(path).expanduser()) if path else ":memory:"
        db = sqlite3.connect(target, check_same_thread=False, timeout=busy_s)
        with closed_on_error(db):
            _prepare(db, path, wal_bytes_max)
            db.execute(f"PRAGMA busy_timeout = {_BUSY_S * 1000:.0f}")
    except (OSError, sqlite3.Error) as error:
        kind = LedgerBusy if is_lock(error) else HangupError
        raise kind(f"cannot use the ledger {path}: {error}") from None
    return db


def _prepare(db: sqlite3.Connection, path: str, wal_bytes_max: int) -> None:
    """Create what the file lacks; raise if another version of hangup wrote it."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA journal_size_limit = {wal_bytes_max}")
    db.execute("PRAGMA synchronous = NORMAL")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version not in (0, _VERSION):
        raise HangupError(f"the ledger {path} was written by another version of hangup ({version})")
    db.executescript(_SCHEMA)
    known = {row[1] for row in db.execute("PRAGMA table_info(spent)")}
    for name in SUMS:  # a file of an earlier version lacks the newer columns, which come last
        if name not in known:
            db.execute(f"ALTER TABLE spent ADD COLUMN {name} REAL NOT NULL DEFAULT 0")
    db.execute(f"PRAGMA user_version = {_VERSION}")


def _newest_time(db: sqlite3.Connection) -> float:
    """Return the wall-clock time of the newest row, or 0 if there are none."""
    (minute,) = db.execute("SELECT max(minute) FROM spent").fetchone()
    return float(minute) * 60 if minute is not None else 0.0


def _bounded(value: float) -> float:
    """Clamp a number from an engine or a client to what SQLite and sums can represent; NaN becomes 0."""
    return min(max(value, -_EXACT_MAX), _EXACT_MAX) if value == value else 0.0  # noqa: PLR0124 - only NaN differs from itself


def _drain(entries: deque[T]) -> Iterable[T]:
    """Empty a deque while another thread appends to it."""
    for _ in range(len(entries)):
        yield entries.popleft()


def _rounded(name: str, value: float) -> float | int:
    return int(value) if name.startswith(("calls", "tokens")) else round(value, 6)
