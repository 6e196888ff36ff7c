"""PostgreSQL behind a store's thread: one connection, opened again when it is lost.

`GroupedWork` shares its statements and its transaction, so that many submissions take one commit. All other work has its own
transaction, which keeps the time short for which it holds rows that other gateways wait for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hangup.errors import HangupError
from hangup.gateway.store.worker_thread import (
    BATCH_MAX,
    GroupedWork,
    Outcomes,
    Piece,
    StoreDamaged,
    StoreFailed,
    StoreLocked,
    StoreThread,
)

if TYPE_CHECKING:
    import psycopg

URL_PREFIXES = ("postgresql://", "postgres://")
_OLDEST = 13  # major version: the first that numbers transactions as the job store needs it
_CONNECT_S = 5
# A gateway that is frozen, or cut off, in a transaction must not keep the others waiting for its rows.
_SESSION = "SET search_path = hangup; SET idle_in_transaction_session_timeout = '10s'; SET lock_timeout = '10s'"
# A server whose host vanished is given up within 25 s: keepalives notice it while hangup waits, `tcp_user_timeout` (ms) while
# what hangup has sent is not acknowledged, which would take the kernel a quarter of an hour.
_NETWORK = {
    "connect_timeout": _CONNECT_S,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_MIGRATING = 0x68616E67  # advisory lock: one gateway at a time migrates
_SLOTS = 0x68616E68  # advisory locks: each connection holds one slot
_FREE_SLOT = f"SELECT n FROM generate_series(1, 10000) AS n WHERE pg_try_advisory_lock({_SLOTS}, n) LIMIT 1"  # noqa: S608
_CONFIGURATION = ("28", "3D", "42", "0A")  # error classes that a retry does not help: password, database, privilege, feature
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def is_postgresql(path: str) -> bool:
    return path.startswith(URL_PREFIXES)


def without_password(url: str) -> str:
    """Return the address for messages and logs. A password may hold an @ or a / that should have been encoded."""
    return re.sub(r"(password=)[^&]*", r"\1***", re.sub(r"(//[^/@:]*):.*@", r"\1:***@", url))


def no_password() -> str:
    return ""


class PostgresConnection:
    """A connection that is opened again by `connect` after it was lost. `slot` and `number` are those of this connection."""

    slot = 0  # no other open connection has it; small numbers are used again
    number = 0  # no other connection ever had it

    def __init__(self, url: str, name: str, migrations: tuple[str, ...], password: Callable[[], str] = no_password) -> None:
        """`connect` opens the tables called `name`, and migrates them if they are older. `password` is asked for each new
        connection; if it returns "", the address and libpq's own variables and files apply."""
        self._url, self._name, self._migrations, self._password = url, name, migrations, password
        self.address = without_password(url)
        self.transactions = 0  # begun so far
        self._real: psycopg.Connection[tuple[Any, ...]] | None = None
        self.psycopg = _client()

    # Statements

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        assert self._real is not None
        return self._real.cursor(binary=True).execute(_numbered(statement), _texts(values) or None)

    def executemany(self, statement: str, rows: list[tuple[Any, ...]], /) -> psycopg.Cursor[tuple[Any, ...]]:
        assert self._real is not None
        cursor = self._real.cursor(binary=True)
        if len(rows) == 1:
            return cursor.execute(_numbered(statement), _texts(rows[0]))
        cursor.executemany(_numbered(statement), map(_texts, rows))
        return cursor

    # Transactions

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is done inside, or nothing of it; connect first if the connection was lost."""
        self._begin()
        try:
            self.transactions += 1
            yield
            self.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(self.psycopg.Error):
                self.execute("ROLLBACK")
            raise

    def _begin(self) -> None:
        self.connect()
        try:
            self.execute("BEGIN")
        except self.psycopg.OperationalError:  # lost while it was idle: nothing was done on it, so this fails no work
            self.connect()
            self.execute("BEGIN")

    def connect(self) -> None:
        """Open the connection if there is none; raise `HangupError` if the server or its tables cannot be used."""
        real = self._real
        if real is not None and not real.closed and self._is_idle(real):
            return
        self.close()
        try:
            self._real = self.psycopg.connect(self._url, **self._options())
            self._prepare(self._real)
        except self.psycopg.Error as error:
            self.close()
            raise self._refused(error) from None
        except BaseException:
            self.close()
            raise

    def _is_idle(self, real: psycopg.Connection[Any]) -> bool:
        return bool(real.info.transaction_status == self.psycopg.pq.TransactionStatus.IDLE)

    def check_address(self) -> None:
        """Raise `HangupError` if the address cannot be read; ask no server."""
        try:
            parts = self._parts()
        except self.psycopg.Error as error:
            raise self._refused(error) from None
        if not all(port.isdecimal() or not port for port in str(parts.get("port", "")).split(",")):
            raise HangupError(f"cannot use {self.address}: the port is not a number")
        if parts.get("sslmode", "prefer") not in _SSL_MODES:
            raise HangupError(f"cannot use {self.address}: sslmode must be one of {', '.join(_SSL_MODES)}")

    def _options(self) -> dict[str, Any]:
        given = self._parts()
        network = {name: value for name, value in _NETWORK.items() if name not in given}
        access = {"password": password} if (password := self._password()) else {}
        return {**network, **access, "application_name": "hangup", "autocommit": True, "cursor_factory": self.psycopg.RawCursor}

    def _parts(self) -> dict[str, Any]:
        """Return what the address says. If it cannot be read as it is meant, the client's own words would show the password."""
        unreadable = HangupError(
            f"cannot use {self.address}: the address cannot be read;"
            " write @ / : % and spaces in its user and password as %40 %2F %3A %25 %20"
        )
        where = self._url.partition("//")[2].partition("?")[0]
        if where.count("@") > 1 or "@" in where.partition("/")[2]:
            raise unreadable
        try:
            return dict(self.psycopg.conninfo.conninfo_to_dict(self._url))
        except self.psycopg.ProgrammingError as error:
            if "query parameter" in str(error):  # names it
                raise
            raise unreadable from None

    def _refused(self, error: psycopg.Error) -> HangupError:
        """Return why the store cannot be used, in one line; `StoreFailed` if that may change by itself."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no answer"]
        text = lines[-1] if "FATAL:" in lines[-1] else lines[0]
        state = error.sqlstate or ""
        final = state.startswith(_CONFIGURATION) or (not state and _is_about_configuration(text))
        return (HangupError if final else StoreFailed)(f"cannot use {self.address}: {text}")

    def _prepare(self, real: psycopg.Connection[tuple[Any, ...]]) -> None:
        version = real.info.server_version // 10_000
        if version < _OLDEST:
            raise HangupError(f"cannot use {self.address}: PostgreSQL {version} is too old; hangup needs {_OLDEST} or newer")
        real.execute(_SESSION, prepare=False)  # first: another gateway may freeze while it migrates
        with real.transaction():
            real.execute("SELECT pg_advisory_xact_lock($1)", (_MIGRATING,))
            self._migrate(real)
        (durable,) = _row(real.execute("SHOW synchronous_commit"))
        if durable == "off":  # an acknowledged job would be lost with the server
            real.execute("SET synchronous_commit = on")
        (self.slot,) = _row(real.execute(_FREE_SLOT)) or (0,)
        (self.number,) = _row(real.execute("SELECT nextval('connection')::bigint"))
        real.execute(f"SET hangup.slot = {self.slot}; SET hangup.connection = {self.number}", prepare=False)

    def _migrate(self, real: psycopg.Connection[tuple[Any, ...]]) -> None:
        if _row(real.execute("SELECT to_regclass('hangup.version') IS NULL")) == (True,):
            real.execute(
                "CREATE SCHEMA IF NOT EXISTS hangup; CREATE SEQUENCE hangup.connection;"
                " CREATE TABLE hangup.version (name TEXT PRIMARY KEY, version INT NOT NULL)",
                prepare=False,
            )
        (version,) = _row(real.execute("SELECT version FROM hangup.version WHERE name = $1", (self._name,))) or (0,)
        newest = len(self._migrations)
        if version > newest:
            raise HangupError(
                f"cannot use {self.address}: it was written by a newer version of hangup"
                f" ({self._name}: schema {version}, here {newest})"
            )
        if version == newest:
            return
        for migration in self._migrations[version:]:
            real.execute(migration, prepare=False)
        upsert = "INSERT INTO version VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET version = excluded.version"
        real.execute(upsert, (self._name, newest))

    def close(self) -> None:
        real, self._real = self._real, None
        if real is not None:
            with contextlib.suppress(self.psycopg.Error):
                real.close()


class PostgresDatabase(StoreThread):
    """A connection to PostgreSQL with its own thread."""

    _hanging = "its server does not answer"

    def __init__(self, url: str, name: str, migrations: tuple[str, ...], password: Callable[[], str] = no_password) -> None:
        self.db = PostgresConnection(url, name, migrations, password)
        self.db.connect()
        super().__init__()

    def _close_connection(self) -> None:
        self.db.close()

    def _next_batch(self) -> list[Piece]:
        batch = self._take(1)
        with contextlib.suppress(IndexError):  # `close` takes work as well
            while batch and _belong_together(batch[-1], self._work[0]) and len(batch) < BATCH_MAX:
                batch += self._take(1)
        return batch

    def _run_batch(self, batch: list[Piece]) -> Outcomes:
        try:
            return self._run_together(batch)
        except Exception as error:
            if len(batch) > 1 and not isinstance(self._as_store_error(error), StoreFailed):
                return [outcome for piece in batch for outcome in self._run_batch([piece])]  # one of them is at fault
            return [(piece.future, None, self._as_store_error(error)) for piece in batch]

    def _run_together(self, batch: list[Piece]) -> Outcomes:
        pieces = [piece for piece in batch if not piece.future.cancelled()]
        work = [piece.work for piece in pieces if isinstance(piece.work, GroupedWork)]
        with self.db.transaction():
            together = len(work) > 1
            results = work[0].run_all([each.one for each in work]) if together else [piece.work() for piece in pieces]
        return [
            (piece.future, None, result) if isinstance(result, Exception) else (piece.future, result, None)
            for piece, result in zip(pieces, results, strict=True)
        ]

    def _as_store_error(self, error: Exception) -> Exception:
        """Map what is the server's fault, not this work's: it is down, full, read-only, restored or damaged."""
        if isinstance(error, HangupError):  # of its own, unless `connect` raised it
            return StoreFailed(str(error)) if type(error) is HangupError else error
        psycopg = self.db.psycopg
        if not isinstance(error, psycopg.Error) or isinstance(error, (psycopg.DataError, psycopg.IntegrityError)):
            return error
        if (getattr(error, "sqlstate", None) or "").startswith("XX"):
            return StoreDamaged(f"the store cannot be used: {_first_line(error)}")
        kind = StoreLocked if isinstance(error, psycopg.errors.LockNotAvailable) else StoreFailed
        return kind(f"the store cannot be written: {_first_line(error)}")


def _belong_together(one: Piece, other: Piece) -> bool:
    work, more = one.work, other.work
    return isinstance(work, GroupedWork) and isinstance(more, GroupedWork) and work.run_all == more.run_all


def _client() -> Any:
    try:
        import psycopg  # noqa: PLC0415 - an extra
    except ImportError:
        raise HangupError("PostgreSQL needs the client psycopg: pip install 'hangup[postgresql]'") from None
    return psycopg


@lru_cache(maxsize=500)
def _numbered(statement: str) -> str:
    """Return a statement with PostgreSQL's placeholders: $1 for ?1, and for the first ?."""
    numbers = iter(range(1, 1000))
    return re.sub(r"\?(\d*)", lambda found: f"${found[1] or next(numbers)}", statement)


def _texts(values: Sequence[Any]) -> Sequence[Any]:
    """Return the values without NUL characters in texts, which PostgreSQL does not store: an id with one is never found."""
    if any(isinstance(value, str) and "\0" in value for value in values):
        return [value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value for value in values]
    return values


def _row(cursor: Iterable[Any]) -> tuple[Any, ...]:
    return next(iter(cursor), ())


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _is_about_configuration(text: str) -> bool:
    """Whether a connection was refused for what the operator wrote; such errors come without a code."""
    return any(part in text for part in ("authentication failed", "does not exist", "no password", "pg_hba.conf", "invalid"))
