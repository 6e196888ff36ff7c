"""SQLite behind a store's thread: one file and one connection.

Work that arrives while a transaction is being committed is grouped into the next transaction, each piece behind its own
savepoint. `Database.do` returns only after that transaction is on disk, so a crash cannot undo work whose caller has a result.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator

from hangup.config.paths import expanded
from hangup.errors import HangupError
from hangup.gateway.store.worker_thread import Outcomes, Piece, StoreDamaged, StoreFailed, StoreLocked, StoreThread

WAL_BYTES_MAX = 64 * 1024 * 1024  # unless the configuration says otherwise
_LOCKS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_TRANSIENT = (*_LOCKS, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)  # worth a retry
_BUSY_S = 5.0  # how long to wait while another process holds the lock


class Database(StoreThread):
    """A SQLite connection with its own thread. An empty `path` means in memory: the data dies with the process."""

    _path = ""
    _identity: tuple[int, int] | None = None

    def __init__(self, path: str, migrations: tuple[str, ...], wal_bytes_max: int = WAL_BYTES_MAX) -> None:
        self.db = _open(path, migrations, wal_bytes_max)
        self._path = str(expanded(path)) if path else ""
        self._identity = file_identity(self._path)
        super().__init__()

    def _close_connection(self) -> None:
        self.db.close()

    def _run_batch(self, batch: list[Piece]) -> Outcomes:
        outcomes: Outcomes = []
        try:
            if file_identity(self._path) != self._identity:
                raise StoreFailed(f"{self._path} was deleted, moved or replaced")
            if self.db.in_transaction:  # an earlier ROLLBACK failed, and the open transaction locks everyone out
                self.db.execute("ROLLBACK")
            self.db.execute("BEGIN IMMEDIATE")
            for piece in batch:
                if piece.future.cancelled():
                    continue
                self.db.execute("SAVEPOINT work")
                try:
                    outcomes.append((piece.future, piece.work(), None))
                except sqlite3.OperationalError:
                    raise  # the file's fault, not this piece of work's: the whole transaction fails
                except Exception as error:
                    self.db.execute("ROLLBACK TO work")
                    outcomes.append((piece.future, None, _as_store_error(error)))
                self.db.execute("RELEASE work")
            self.db.execute("COMMIT")
        except Exception as error:
            with contextlib.suppress(sqlite3.Error):
                self.db.execute("ROLLBACK")
            kind = StoreDamaged if _is_damage(error) else StoreLocked if is_lock(error) else StoreFailed
            failure = kind(f"the store cannot be written: {error}")
            outcomes = [(piece.future, None, failure) for piece in batch]
        return outcomes


def file_identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of the file at `path`, or None if there is none.

    A deleted file stays writable while it is open, but what is written to it is lost; comparing identities detects that.
    """
    try:
        found = os.stat(path) if path else None  # noqa: PTH116 - runs in each transaction
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found is not None else None


def is_of_others(db: sqlite3.Connection, schema: str) -> bool:
    """Return whether a file has tables, but none of this schema: it is another program's, or our other store."""
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return bool(names) and names.isdisjoint(re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", schema))


@contextlib.contextmanager
def closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    """Close a database that cannot be used after all: it may hold the lock of its file, and the error would keep it alive."""
    try:
        yield
    except BaseException:
        db.close()
        raise


def _as_store_error(error: Exception) -> Exception:
    """Map corruption to `StoreDamaged`: a damaged page fails only the work that reads it."""
    return StoreDamaged(f"the store cannot be used: {error}") if _is_damage(error) else error


def _is_damage(error: Exception) -> bool:
    if isinstance(error, sqlite3.IntegrityError):  # no statement of ours makes a NULL there: it was read from a damaged page
        return error.sqlite_errorname == "SQLITE_CONSTRAINT_NOTNULL"
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)


def is_lock(error: Exception) -> bool:
    """Return whether another process holds the file's lock, which says nothing about the disk."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKS


def _open(path: str, migrations: tuple[str, ...], wal_bytes_max: int = WAL_BYTES_MAX) -> sqlite3.Connection:
    try:
        if path:
            expanded(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            expanded(path).touch(mode=0o600)  # prompts and answers are private
        target = expanded(path) if path else ":memory:"
        db = sqlite3.connect(target, check_same_thread=False, isolation_level=None, timeout=_BUSY_S)
        with closed_on_error(db):
            if is_of_others(db, migrations[0]):  # before anything is changed in it
                raise HangupError(f"{path} is a SQLite file, but not one of this store: it has other tables")
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # new files only: lets freed pages return to the disk
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA journal_size_limit = {wal_bytes_max}")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = ON")
            _migrate(db, path, migrations)
    except (OSError, sqlite3.Error) as error:
        kind = StoreFailed if getattr(error, "sqlite_errorcode", 0) & 0xFF in _TRANSIENT else HangupError
        raise kind(f"cannot use {path}: {error}") from None
    return db


def _migrate(db: sqlite3.Connection, path: str, migrations: tuple[str, ...]) -> None:
    """Migrate the file to the newest schema version, step by step, in one transaction."""
    db.execute("BEGIN IMMEDIATE")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise HangupError(f"{path} was written by a newer version of hangup (schema {version}, here {len(migrations)})")
    for migration in migrations[version:]:
        statement = ""
        for line in migration.splitlines(keepends=True):  # `executescript` would commit between statements
            statement += line
            if sqlite3.complete_statement(statement):
                db.execute(statement)
                statement = ""
        assert not statement.strip(), statement
    db.execute(f"PRAGMA user_version = {len(migrations)}")
    db.execute("COMMIT")
