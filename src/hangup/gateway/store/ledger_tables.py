"""The ledger's tables: in a SQLite file of one gateway, or on a PostgreSQL server for several."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Protocol

from hangup.config.paths import expanded
from hangup.core.account import Account
from hangup.errors import HangupError, LedgerBusy
from hangup.gateway.store.database import closed_on_error, file_identity, is_lock, is_of_others
from hangup.gateway.store.postgresql import PostgresConnection
from hangup.gateway.store.worker_thread import Connection, StoreFailed

GROUPS = ("tenant", "model", "backend", "cause")
SUMS = tuple(field.name for field in fields(Account))
COUNT_TABLES = ("computed", "uncounted")  # tokens reported by engines, and lost with an engine before its report
VERSION = 1  # a new column (a field of `Account`) needs the next one, and a migration for servers
_OPEN_BUSY_S, _BUSY_S = 5.0, 2.0  # how long to wait while another process holds the file's lock, at the start and later
USED_BYTES = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
_DELETING = 0x68616E69  # advisory lock: one gateway at a time deletes what is old
SCHEMA = f"""
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


def _server_migrations() -> tuple[str, ...]:
    """Return the schema of a server. A new field of `Account` needs a new migration."""
    text = SCHEMA.replace("IF NOT EXISTS ", "").replace(" WITHOUT ROWID", "")
    return (text.replace("INTEGER", "BIGINT").replace("REAL", "DOUBLE PRECISION"),)


class LedgerTables(Protocol):
    """Where the ledger's rows are. Used by one thread at a time."""

    path: str
    where: str  # what does not answer if a transaction hangs
    ordered: bool  # rows must be written in order, because other gateways write some of them at the same time

    def transaction(self) -> contextlib.AbstractContextManager[Connection]:
        """Commit what is done inside, or nothing of it."""

    def recover(self) -> bool:
        """Make the tables usable after a failure; return whether they are new ones."""

    def take_doubt(self) -> int | None:
        """Return the number of the last transaction if nobody knows whether it was committed."""

    def was_committed(self, number: int) -> bool: ...

    def used_bytes(self, db: Connection) -> int: ...

    def lock_for_deletion(self, db: Connection) -> None:
        """Keep others from deleting rows until the transaction ends."""

    def wait_less(self, seconds: float) -> None:
        """Wait no longer than this for the lock of another process from now on."""

    def close(self) -> None: ...


class LedgerFile:
    """A SQLite file. An empty `path` means in memory: the data dies with the process."""

    where = "disk"
    ordered = False

    def __init__(self, path: str, wal_bytes_max: int) -> None:
        self._wal_bytes_max = wal_bytes_max
        self.db = open_file(path, wal_bytes_max, _OPEN_BUSY_S)
        self.path = str(expanded(path)) if path else ""
        self._identity = file_identity(self.path)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        self._roll_back()
        with self.db:
            yield self.db

    def recover(self) -> bool:
        """Roll back an open transaction and reopen a deleted file.

        Otherwise accounts would be booked twice, or written to a file that nobody can read.
        """
        self._roll_back()
        if file_identity(self.path) == self._identity:
            return False
        opened = open_file(self.path, self._wal_bytes_max)
        self.db.close()
        self.db, self._identity = opened, file_identity(self.path)
        return True

    def _roll_back(self) -> None:
        """Drop a transaction that an earlier failure left open: a commit of other work would write it as well."""
        if self.db.in_transaction:
            self.db.rollback()

    def take_doubt(self) -> None:
        """Nothing is in doubt: a commit that fails was rolled back."""

    def was_committed(self, number: int) -> bool:
        return False

    def used_bytes(self, db: Connection) -> int:
        return int(db.execute(USED_BYTES).fetchone()[0])

    def lock_for_deletion(self, db: Connection) -> None: ...

    def wait_less(self, seconds: float) -> None:
        (longest_ms,) = self.db.execute("PRAGMA busy_timeout").fetchone()
        self.db.execute(f"PRAGMA busy_timeout = {min(longest_ms, seconds * 1000):.0f}")

    def close(self) -> None:
        self.db.close()


class LedgerServer:
    """Tables on a PostgreSQL server. Several gateways add to the same rows, in the same order, so none waits in a circle."""

    where = "server"
    ordered = True

    def __init__(self, url: str, password: Callable[[], str]) -> None:
        self._connection = PostgresConnection(url, "ledger", _server_migrations(), password)
        self.path = self._connection.address
        self._committing: int | None = None  # the transaction whose commit has not been answered
        with contextlib.suppress(StoreFailed):  # not reachable now: calls are booked in memory until it is
            self._connection.connect()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        self._committing = None
        db: Connection = self._connection
        try:
            with self._connection.transaction():
                yield db
                (self._committing,) = db.execute("SELECT pg_current_xact_id_if_assigned()::text::bigint").fetchone()
            self._committing = None
        except (StoreFailed, self._connection.psycopg.Error) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise LedgerBusy(f"the ledger cannot be used: {lines[0]}") from None

    def recover(self) -> bool:
        return False

    def take_doubt(self) -> int | None:
        number, self._committing = self._committing, None
        return number

    def was_committed(self, number: int) -> bool:
        """Ask the server what became of a transaction; raise `LedgerBusy` if it cannot say now."""
        db: Connection = self._connection
        try:
            with self._connection.transaction():
                (status,) = db.execute("SELECT pg_xact_status(CAST(CAST(? AS TEXT) AS xid8))", (str(number),)).fetchone()
        except self._connection.psycopg.DataError:  # the server was restored, or another took over, and has not come so far
            return False
        except (StoreFailed, self._connection.psycopg.Error) as error:
            raise LedgerBusy(f"the ledger cannot be used: {error}") from None
        if status == "in progress":  # the server has not noticed yet that the connection is lost
            raise LedgerBusy("the ledger cannot be used: its last transaction has not ended yet")
        return bool(status == "committed")

    def used_bytes(self, db: Connection) -> int:
        """Return the size of the rows; the server keeps the room of deleted ones for others."""
        return int(db.execute("SELECT coalesce(sum(pg_column_size(spent.*)), 0)::bigint FROM spent").fetchone()[0])

    def lock_for_deletion(self, db: Connection) -> None:
        db.execute("SELECT pg_advisory_xact_lock(?)", (_DELETING,))

    def wait_less(self, seconds: float) -> None:
        """A server ends what waits for a lock by itself."""

    def close(self) -> None:
        self._connection.close()


def open_file(path: str, wal_bytes_max: int, busy_s: float = _BUSY_S) -> sqlite3.Connection:
    """Open the file; wait up to `busy_s` for the lock of another process, and up to `_BUSY_S` for each later one."""
    try:
        if path:
            expanded(path).parent.mkdir(parents=True, exist_ok=True)
            expanded(path).touch(mode=0o600)  # usage and cost per tenant are private
        target = str(expanded(path)) if path else ":memory:"
        db = sqlite3.connect(target, check_same_thread=False, timeout=busy_s)
        with closed_on_error(db):
            _prepare(db, path, wal_bytes_max)
            db.execute(f"PRAGMA busy_timeout = {_BUSY_S * 1000:.0f}")
    except (OSError, sqlite3.Error) as error:
        kind = LedgerBusy if is_lock(error) else HangupError
        raise kind(f"cannot use the ledger {path}: {error}") from None
    return db


def _prepare(db: sqlite3.Connection, path: str, wal_bytes_max: int) -> None:
    """Create what the file lacks; raise if a newer version of hangup wrote it."""
    if is_of_others(db, SCHEMA):  # before anything is changed in it
        raise HangupError(f"the ledger {path} is a SQLite file, but not a ledger: it has other tables")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA journal_size_limit = {wal_bytes_max}")
    db.execute("PRAGMA synchronous = NORMAL")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise HangupError(f"the ledger {path} was written by a newer version of hangup (schema {version}, here {VERSION})")
    db.executescript(SCHEMA)
    known = {row[1] for row in db.execute("PRAGMA table_info(spent)")}
    for name in SUMS:  # a file of an earlier version lacks the newer columns, which come last
        if name not in known:
            db.execute(f"ALTER TABLE spent ADD COLUMN {name} REAL NOT NULL DEFAULT 0")
    db.execute(f"PRAGMA user_version = {VERSION}")
