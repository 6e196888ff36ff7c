"""Keeps the ledger: what calls cost and delivered, per minute, tenant, model, backend and cause.

The data path only adds a call to an account in memory. A thread takes all accounts every `ledger_flush_s` and writes them in
one transaction. A killed process loses at most that batch. `ledger_tables` has the tables, in a file or on a server.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, TypeVar

from hangup.core.account import Account, Entry, Price
from hangup.core.call import Call
from hangup.core.clocks import SteadyClock
from hangup.core.reasons import Outcome
from hangup.errors import HangupError, LedgerBusy
from hangup.gateway.store.database import WAL_BYTES_MAX, is_lock
from hangup.gateway.store.ledger_tables import COUNT_TABLES, GROUPS, SUMS, LedgerFile, LedgerServer, LedgerTables, open_file
from hangup.gateway.store.postgresql import is_postgresql, no_password
from hangup.gateway.store.worker_thread import Connection
from hangup.tasks import TASKS

_Accounts = dict[tuple[int, str, str, str, str], Account]  # keyed by minute and `GROUPS`
_Counts = dict[str, list[tuple[int, str, int]]]  # by table: minute, backend, tokens
T = TypeVar("T")
_MODELS_MAX: Final = 1000  # clients choose model names: names beyond this limit, within an hour, are summed as `_OTHER`
_UNSERVED_MODELS_MAX: Final = 100  # the limit for names that no engine has served: invented names must not displace real ones
_MODEL_CHARS_MAX: Final = 200
_OTHER: Final = "(other)"
# A transaction that takes this long, which is longer than any wait for a lock, has a disk that hangs: reports and the end of
# the process go on without it.
_HANGING_S: Final = 5.0
_CLOSE_S: Final = 10.0  # for the last write, while another process holds the lock, unless the caller has less time
_END_S: Final = 0.5  # for the thread to end after its last attempt
_LOCK_PAUSE_S: Final = 0.05  # between attempts, for a lock that SQLite does not wait for itself
_FIRST_SWEEP_S, _RETENTION_EVERY_S = 1.0, 3600.0
_DELETED_MINUTES: Final = 1440  # deleted per transaction
_COUNTS_WAITING_MAX: Final = 10_000  # engine counts held in memory while the file cannot be written
_EXACT_MAX: Final = 2.0**53  # above this, floats no longer represent every integer, and sums are inexact
# Rows that one statement inserts. The writer takes Python's lock from the event loop once for each statement, not for each row,
# and holds it for a fraction of a millisecond to prepare the next. Old versions of SQLite take 999 values in a statement.
_ROWS_MAX: Final = 32
_MINUTES: Final = """
SELECT min(first), max(last) FROM (
    SELECT min(minute) AS first, max(minute) AS last FROM spent
    UNION ALL SELECT min(minute), max(minute) FROM computed
    UNION ALL SELECT min(minute), max(minute) FROM uncounted
) AS all_minutes"""
_INSERT_COUNT: Final = {
    table: f"INSERT INTO {table} VALUES (?, ?, ?)"  # noqa: S608 - names of ours
    f" ON CONFLICT (minute, backend) DO UPDATE SET tokens = {table}.tokens + excluded.tokens"
    for table in COUNT_TABLES
}


class LedgerStore:
    """The ledger's tables and its writer thread. An empty `path` means in memory: the data dies with the process."""

    def __init__(
        self,
        path: str,
        *,
        flush_s: float,
        days: float,
        accounts_max: int,
        bytes_max: int = 1024**3,
        wal_bytes_max: int = WAL_BYTES_MAX,
        password: Callable[[], str] = no_password,
        clock: Callable[[], float] = time.time,
        log_event: Callable[..., None] = lambda event, **fields: None,
    ) -> None:
        """`log_event` receives log events about a file that cannot be written; it may be called in any thread."""
        self.dropped = 0
        self.flush_s = flush_s
        self._days = days
        self._accounts_max = accounts_max
        self._bytes_max = bytes_max
        self._clock = clock
        self._accounts: _Accounts = {}
        self._accounts_lock = threading.Lock()  # guards the accounts: held to record one call, or to take all accounts
        self._counts: dict[str, deque[tuple[int, str, int]]] = {table: deque() for table in COUNT_TABLES}
        self._models: set[str] = set()
        self._unserved_models: set[str] = set()
        self._db_lock = threading.Lock()  # guards the database: for the writer thread and reports, never on the data path
        self._tables: LedgerTables = LedgerServer(path, password) if is_postgresql(path) else LedgerFile(path, wal_bytes_max)
        self._sweep_at = time.monotonic() + _FIRST_SWEEP_S
        self._steady_clock = SteadyClock(_newest_time(self._tables), clock(), time.monotonic())
        self.failing = False  # the file cannot be written: booked calls wait in memory
        self._in_doubt = 0  # calls in the write that is under way
        self._unsure: tuple[int, _Accounts, _Counts] | None = None  # a transaction that may be committed, and what it wrote
        self._locked = False  # the last failure was the lock of another process
        self._log_event = log_event
        self._write_until = math.inf  # monotonic; set by `close`
        self._closing = threading.Event()
        self._writer = TASKS.thread("ledger", self._run)

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
            with self._tables.transaction() as db:
                rows = db.execute(
                    f"SELECT {by}, {sums} FROM spent WHERE minute >= ? GROUP BY {by} ORDER BY sum(engine_s) DESC",  # noqa: S608
                    (first,),
                ).fetchall()
                recorded = _sums_by_backend(db, "spent", "tokens_delivered + tokens_wasted", first)
                computed, uncounted = (_sums_by_backend(db, table, "tokens", first) for table in COUNT_TABLES)
        named = [{by: row[0], **dict(zip(SUMS, map(_rounded, SUMS, row[1:]), strict=True))} for row in rows]
        total = {name: _rounded(name, sum(row[at] for row in rows)) for at, name in enumerate(SUMS, 1)}
        engines = {
            name: {"computed": tokens, "uncounted": uncounted.get(name, 0), "booked": int(recorded.get(name, 0))}
            for name, tokens in computed.items()
        }
        return {"by": by, "since_s": since_s, "rows": named, "total": total, "engines": engines}

    def close(self, within_s: float = _CLOSE_S) -> None:
        """Write the remaining accounts and close the file. If the disk hangs or another process does not release its lock,
        leave both, so that the process can end, and log what is lost."""
        self._write_until = time.monotonic() + within_s - _END_S
        self._closing.set()
        self._writer.join(timeout=within_s)
        if self._writer.is_alive():
            self._report_failure(LedgerBusy(f"the ledger's {self._tables.where} did not answer for {within_s:.1f} s"))
        with self._accounts_lock:
            unwritten, self._accounts = self._accounts, {}  # the thread must not write later what is reported as lost
        lost = _calls_of(unwritten)
        self.dropped += lost
        in_doubt = self._in_doubt + (_calls_of(self._unsure[1]) if self._unsure is not None else 0)
        if lost or in_doubt:
            self._log_event("ledger_entries_lost", calls=lost, in_doubt=in_doubt)

    @contextlib.contextmanager
    def _use_file(self) -> Iterator[None]:
        """Hold the database; raise `LedgerBusy` if whoever holds it does not let go, because the disk or the server hangs."""
        if not self._db_lock.acquire(timeout=_HANGING_S):
            raise LedgerBusy(f"the ledger's {self._tables.where} did not answer for {_HANGING_S:g} s")
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
                break
            try:
                self._delete_expired()
            except Exception as error:
                self._report_failure(error)
        self._write_rest()

    def _write_rest(self) -> None:
        """Write for the last time, and close the file. Here and not in `close`: nobody can give up a write of his own."""
        with TASKS.working("ledger"), self._db_lock:
            while True:
                left_s = self._write_until - time.monotonic()
                self._tables.wait_less(max(0.0, left_s))
                if self._write() or not self._locked or left_s <= 0:
                    break
                time.sleep(_LOCK_PAUSE_S)
            self._tables.close()

    def _write(self) -> bool:
        """Write all accounts; return False, and keep them, if that is not possible now."""
        try:
            self._settle_doubt()
        except Exception as error:
            self._note_failure(error)
            return False
        with self._accounts_lock:
            accounts, self._accounts = self._accounts, {}
        counts = {table: list(_drain(waiting)) for table, waiting in self._counts.items()}
        if not accounts and not any(counts.values()):
            return True
        self._in_doubt = _calls_of(accounts)
        try:
            if self._tables.recover():
                self._log_event("ledger_reopened", path=self._tables.path)
            with self._tables.transaction() as db:
                self._insert(db, accounts)
                for table, rows in counts.items():
                    db.executemany(_INSERT_COUNT[table], sorted(rows))
        except Exception as error:  # a full disk must not stop the gateway
            number = self._tables.take_doubt()
            if number is not None:
                self._unsure = number, accounts, counts
            else:
                self._put_back(accounts, counts)
            self._note_failure(error)
            return False
        finally:
            self._in_doubt = 0
        self._note_success()
        return True

    def _insert(self, db: Connection, accounts: _Accounts) -> None:
        keys = sorted(accounts) if self._tables.ordered else list(accounts)
        at = 0
        while at < len(keys):
            count = 1 << min(len(keys) - at, _ROWS_MAX).bit_length() - 1  # powers of two: few different statements
            values: list[int | str | float] = []
            for key in keys[at : at + count]:
                values.extend(key)
                account = accounts[key]
                for name in SUMS:
                    values.append(_bounded(getattr(account, name)))  # noqa: PERF401 - compiled, this is fastest
            db.execute(_insert_spent(count), values)
            at += count

    def _settle_doubt(self) -> None:
        """Write again what a lost connection left in doubt, unless it was committed: it must not be booked twice."""
        if self._unsure is not None:
            number, accounts, counts = self._unsure
            committed = self._tables.was_committed(number)
            self._unsure = None
            if not committed:
                self._put_back(accounts, counts)
            self._note_success()

    def _note_success(self) -> None:
        if self.failing:
            self.failing = False
            self._log_event("ledger_recovered")

    def _note_failure(self, error: Exception) -> None:
        self._locked = isinstance(error, LedgerBusy) or is_lock(error)
        self._report_failure(error)

    def _put_back(self, accounts: _Accounts, counts: _Counts) -> None:
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
        for table in ("spent", *COUNT_TABLES):
            while self._delete_some_expired(table, oldest):  # releases the lock between deletions, so that reports can run
                pass
        while self._forget_for_room():
            pass

    def _forget_for_room(self) -> bool:
        """Delete the oldest entries of a ledger that is too large; return whether that may not have been enough."""
        with TASKS.working("ledger"), self._db_lock, self._tables.transaction() as db:
            self._tables.lock_for_deletion(db)
            used = self._tables.used_bytes(db)
            first, last = db.execute(_MINUTES).fetchone()
            if used <= self._bytes_max or first is None or first == last:
                return False
            until = first + max((last - first) // 10, 1)
            for table in ("spent", *COUNT_TABLES):
                db.execute(f"DELETE FROM {table} WHERE minute < ?", (until,))  # noqa: S608 - names of ours
        self._log_event("ledger_full", bytes=used, deleted_until=until * 60)
        return True

    def _delete_some_expired(self, table: str, oldest: int) -> bool:
        with TASKS.working("ledger"), self._db_lock, self._tables.transaction() as db:
            self._tables.lock_for_deletion(db)
            (first,) = db.execute(f"SELECT min(minute) FROM {table}").fetchone()  # noqa: S608 - names of ours
            if first is None or first >= oldest:
                return False
            until = min(first + _DELETED_MINUTES, oldest)
            db.execute(f"DELETE FROM {table} WHERE minute < ?", (until,))  # noqa: S608 - names of ours
            return bool(until < oldest)


def _calls_of(accounts: _Accounts) -> int:
    return int(sum(account.calls for account in accounts.values()))


def _was_served(call: Call) -> bool:
    """Return whether an engine knows the model: it produced tokens, or answered with 200."""
    return bool(call.tokens_out) or (call.outcome is Outcome.COMPLETED and call.status == 200)


def create_ledger(path: str, wal_bytes_max: int) -> None:
    """Create the file, or bring it up to date, before several processes open it at once. A server does that itself."""
    if not is_postgresql(path):
        open_file(path, wal_bytes_max).close()


def _newest_time(tables: LedgerTables) -> float:
    """Return the wall-clock time of the newest row, or 0 if there are none, or if a server cannot be reached."""
    with contextlib.suppress(LedgerBusy), tables.transaction() as db:
        (minute,) = db.execute("SELECT max(minute) FROM spent").fetchone()
        return float(minute) * 60 if minute is not None else 0.0
    return 0.0


def _sums_by_backend(db: Connection, table: str, what: str, first: int) -> dict[str, int]:
    rows = db.execute(f"SELECT backend, sum({what}) FROM {table} WHERE minute >= ? GROUP BY backend", (first,))  # noqa: S608
    return {backend: int(tokens) for backend, tokens in rows}


@cache
def _insert_spent(count: int) -> str:
    row = f"(?, {', '.join('?' * (len(GROUPS) + len(SUMS)))})"
    return (
        f"INSERT INTO spent VALUES {', '.join([row] * count)}"  # noqa: S608 - names of ours
        f" ON CONFLICT (minute, {', '.join(GROUPS)})"
        f" DO UPDATE SET {', '.join(f'{name} = spent.{name} + excluded.{name}' for name in SUMS)}"
    )


def _bounded(value: object) -> float:
    """Clamp a number from an engine or a client to what SQLite and sums can represent; NaN becomes 0.

    An int must be clamped as one: too large a float cannot be made of it.
    """
    if isinstance(value, int):
        return float(min(max(value, -(2**53)), 2**53))
    assert isinstance(value, float)
    return min(max(value, -_EXACT_MAX), _EXACT_MAX) if value == value else 0.0  # noqa: PLR0124 - only NaN differs from itself


def _drain(entries: deque[T]) -> Iterable[T]:
    """Empty a deque while another thread appends to it."""
    for _ in range(len(entries)):
        yield entries.popleft()


def _rounded(name: str, value: float) -> float | int:
    return int(value) if name.startswith(("calls", "tokens")) else round(value, 6)
