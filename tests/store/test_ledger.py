"""The ledger on disk: sums, restarts, kills, retention, and a client that invents model names."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hangup.core import reasons
from hangup.core.account import Account, Entry, Price
from hangup.core.call import Call
from hangup.core.clocks import SteadyClock
from hangup.core.reasons import Reason
from hangup.errors import HangupError, LedgerBusy
from hangup.gateway.store import database, ledger
from hangup.gateway.store.jobs.schema import MIGRATIONS
from hangup.gateway.store.ledger import LedgerStore
from hangup.gateway.store.ledger_tables import USED_BYTES, LedgerFile, open_file
from hangup.tasks import TASKS
from support.waiting import wait_until


def make(path: Path | str = "", **options: Any) -> LedgerStore:
    return LedgerStore(str(path), **{"flush_s": 3600.0, "days": 30.0, "accounts_max": 1000, **options})


def file_of(store: LedgerStore) -> LedgerFile:
    assert isinstance(store._tables, LedgerFile)
    return store._tables


def book(store: LedgerStore, tenant: str = "a", model: str = "m", reason: Reason = reasons.COMPLETED) -> None:
    """Record a streamed call of 3 tokens in and 10 out, and half a second of an engine that costs 0.5 a second."""
    call = Call("id", 0.0)
    call.tenant, call.model, call.stream, call.tokens_in = tenant, model, True, 3
    call.received(0.0)
    call.sent("b", 0.0)
    call.answered(0.0)
    call.progressed(10, 0.0)
    call.engine_finished = reason is reasons.COMPLETED
    call.end(reason, 1.0)
    store.add_call(call, 0.5, 25.0, Price(per_hour=1800.0))


def test_sums_by_each_group(store_path: str) -> None:
    store = make(store_path)
    for tenant, reason in (("a", reasons.COMPLETED), ("a", reasons.CLIENT_FIN), ("b", reasons.COMPLETED)):
        book(store, tenant, reason=reason)
    store.add_computed("b", 28)
    store.add_uncounted("b", 3)
    report = store.report(3600, "tenant")
    assert [(row["tenant"], row["calls"], row["tokens_delivered"], row["engine_s"]) for row in report["rows"]] == [
        ("a", 2, 20, 1.0),
        ("b", 1, 10, 0.5),
    ]
    assert report["total"]["tokens_delivered"] == 30 and report["total"]["money"] == 0.75
    assert (report["total"]["tokens_saved"], report["total"]["money_saved"]) == (15, 0.375)
    assert report["engines"] == {"b": {"computed": 28, "uncounted": 3, "booked": 30}}
    assert [row["cause"] for row in store.report(3600, "cause")["rows"]] == ["completed", "client_gone"]
    with pytest.raises(HangupError):
        store.report(3600, "tenant; DROP TABLE spent")
    store.close()


def test_a_restart_goes_on_where_it_was(store_path: str) -> None:
    path = store_path.replace("jobs.sqlite", "deep/ledger.db")
    for _ in range(2):
        store = make(path)
        book(store)
        store.close()
    store = make(path)
    assert store.report(3600, "model")["total"]["calls"] == 2
    store.close()


def test_only_the_window_counts_and_what_is_old_is_forgotten(store_path: str) -> None:
    now = [1_000_000.0]
    store = make(store_path, clock=lambda: now[0], days=1.0)
    book(store)
    now[0] += 7200
    book(store)
    assert store.report(3600, "tenant")["total"]["calls"] == 1
    assert store.report(86_400, "tenant")["total"]["calls"] == 2
    now[0] += 86_400 - 3600
    store._steady_clock, store._sweep_at = SteadyClock(0.0, now[0], time.monotonic()), 0.0  # as in a long-lived process
    store._delete_expired()
    assert store.report(1e6, "tenant")["total"]["calls"] == 1
    store.close()


def test_invented_models_are_summed_up_as_one() -> None:
    store = make(accounts_max=5000)
    for at in range(1500):
        book(store, model=f"m{at}" * 100)
    rows = store.report(3600, "model")["rows"]
    assert len(rows) == 1001 and max(len(row["model"]) for row in rows) <= 200
    assert next(row["calls"] for row in rows if row["model"] == "(other)") == 500
    store.close()


def test_many_accounts_take_few_statements(tmp_path: Path) -> None:
    """Each statement takes Python's lock from the event loop for a moment: one for each account made all calls slower."""
    store = make(tmp_path / "ledger.sqlite")
    statements: list[str] = []
    file_of(store).db.set_trace_callback(statements.append)
    for _ in range(2):  # new rows, then rows that are there
        for at in range(301):
            book(store, f"t{at}")
        statements.clear()
        with store._db_lock:
            assert store._write()
        assert sum(statement.startswith("INSERT INTO spent") for statement in statements) == 12  # 9 × 32, 8, 4, 1 rows
    rows = store.report(3600, "tenant")["rows"]
    assert {row["tenant"]: (row["calls"], row["tokens_delivered"]) for row in rows} == {f"t{at}": (2, 20) for at in range(301)}
    store.close()


def test_more_than_may_wait_is_counted() -> None:
    """ledger_accounts_max"""
    store = make(accounts_max=2)
    for at in range(5):
        book(store, f"t{at}")
    assert store.dropped == 3 and store.report(60, "tenant")["total"]["calls"] == 2
    store.close()


def test_a_clock_that_is_set_ahead_forgets_nothing(store_path: str) -> None:
    now = [1_000_000.0]
    store = make(store_path, clock=lambda: now[0], days=1.0)
    book(store)
    store.report(60, "tenant")
    now[0] += 91 * 86_400
    store._sweep_at = 0.0
    store._delete_expired()
    store.close()
    store = make(store_path, clock=lambda: now[0], days=1.0)  # nor does a start with such a clock
    store._sweep_at = 0.0
    store._delete_expired()
    assert store.report(1e9, "tenant")["total"]["calls"] == 1
    store.close()


@contextlib.contextmanager
def locked_by_another_process(path: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that ends the other process, and with it its lock."""
    code = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); db.execute('BEGIN IMMEDIATE');"
        "print('locked', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        try:
            yield other.stdin.close
        finally:
            other.kill()


class TestFailing:
    def test_a_file_that_is_locked_costs_nothing_but_time(self, tmp_path: Path) -> None:
        """During a write and during a deletion: the thread survives, the failure is logged, and nothing is lost."""
        path, logged = tmp_path / "l.db", []
        store = make(path, flush_s=0.05, log_event=lambda event, **fields: logged.append(event))
        file_of(store).db.execute("PRAGMA busy_timeout = 50")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            store._sweep_at = 0.0
            book(store)
            wait_until(lambda: "ledger_failed" in logged, what="the failure to be told")
            book(store)
            time.sleep(0.3)
            other.execute("ROLLBACK")
        wait_until(lambda: "ledger_recovered" in logged, what="it to work")
        assert store._writer.is_alive() and store.dropped == 0
        assert store.report(3600, "tenant")["total"]["calls"] == 2
        assert logged == ["ledger_failed", "ledger_recovered"]
        store.close()

    def test_a_lock_of_another_process_at_the_end_is_waited_for(self, tmp_path: Path) -> None:
        """It is no disk that hangs: when it is released, the last accounts are written."""
        path, logged = tmp_path / "l.db", []
        store = make(path, flush_s=60, log_event=lambda event, **fields: logged.append(event))
        file_of(store).db.execute("PRAGMA busy_timeout = 10")
        with locked_by_another_process(path) as release:
            book(store)
            closing = threading.Thread(target=store.close, args=(120.0,))
            closing.start()
            wait_until(lambda: "ledger_failed" in logged, what="the lock to be met")
            closing.join(0.5)
            assert closing.is_alive()
            release()
            closing.join(60)
        assert logged == ["ledger_failed", "ledger_recovered"] and store.dropped == 0
        again = make(path)
        assert again.report(3600, "tenant")["total"]["calls"] == 1
        again.close()

    def test_a_lock_that_stays_ends_with_the_number_of_lost_calls(self, tmp_path: Path) -> None:
        path, logged = tmp_path / "l.db", []
        store = make(path, flush_s=60, log_event=lambda event, **fields: logged.append((event, fields)))
        file_of(store).db.execute("PRAGMA busy_timeout = 10")
        with locked_by_another_process(path):
            book(store)
            book(store)
            store.close(1.0)
        assert logged == [
            ("ledger_failed", {"error": "database is locked"}),
            ("ledger_entries_lost", {"calls": 2, "in_doubt": 0}),
        ]
        assert store.dropped == 2

    def test_numbers_that_no_database_takes(self, store_path: str) -> None:
        """An odd engine may report them; they break neither the thread nor other entries."""
        store = make(store_path, flush_s=0.05)
        call = Call("id", 0.0)
        call.tokens_in = 2**64 - 1
        call.end(reasons.COMPLETED, 1.0)
        store.add_call(call, float("inf"), float("nan"), Price(per_hour=1.0))
        store.add_computed("b", 10**400)
        store.add(Entry("a", "m", "b", "completed", Account(calls=1, tokens_in=10**400)))
        book(store)
        assert store.report(3600, "tenant")["total"]["calls"] == 3
        assert store._writer.is_alive() and not store.failing
        store.close()

    def test_what_was_never_written_is_counted(self, tmp_path: Path) -> None:
        store = make(tmp_path / "l.db", flush_s=0.05)
        file_of(store).db.execute("PRAGMA busy_timeout = 10")
        with contextlib.closing(sqlite3.connect(tmp_path / "l.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            book(store)
            wait_until(lambda: store.failing, what="the failure")
            store.close()
        assert store.dropped == 1


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(HangupError, match="cannot use the ledger"):
        make(path)


_WRITER = """
import sys, time
from hangup.core import reasons
from hangup.core.account import FREE
from hangup.core.call import Call
from hangup.core.clocks import SteadyClock
from hangup.gateway.store.ledger import LedgerStore
call = Call("id", 0.0)
call.end(reasons.COMPLETED, 1.0)
store = LedgerStore(sys.argv[1], flush_s=0.05, days=1, accounts_max=10**6)
n = 0
while True:
    store.add_call(call, 0.0, 0.0, FREE)
    n += 1
    if n % 100 == 0:
        print(n, flush=True)
        time.sleep(0.05)
"""


def test_kill_9_loses_one_batch_at_most(tmp_path: Path) -> None:
    """ledger_flush_s: at most 2,000 entries a second are written 20 times a second, so about 100 may be lost, but never the
    file."""
    path = tmp_path / "ledger.db"
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    with writer, contextlib.closing(sqlite3.connect(path)) as reader:

        def written() -> int:
            try:
                return int(reader.execute("SELECT coalesce(sum(calls), 0) FROM spent").fetchone()[0])
            except sqlite3.OperationalError:
                return 0

        wait_until(lambda: written() > 1000)
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged = [int(line) for line in writer.stdout.read().split()]
    store = make(path)
    stored = store.report(3600, "tenant")["total"]["calls"]
    store.close()
    assert acknowledged[-1] - stored <= 2000 and stored > 1000, "a second's worth, on however busy a machine"


def test_a_file_of_another_version_is_closed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Recorded(sqlite3.Connection):
        def close(self) -> None:
            closed.append(True)
            super().close()

    path = tmp_path / "ledger.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Recorded))
    with pytest.raises(HangupError, match="newer version"):
        make(path)
    assert closed == [True]


def test_invented_models_displace_no_real_one() -> None:
    store = make()
    for number in range(2000):
        call = Call("id", 0.0)
        call.tenant, call.model = "a", f"invented-{number}"
        call.end(reasons.BAD_FIELD, 1.0)
        store.add_call(call, 0.0, 0.0, Price())
    book(store, model="real")
    rows = {row["model"]: row["calls"] for row in store.report(3600, "model")["rows"]}
    assert rows["real"] == 1
    assert rows["(other)"] == 1900
    store.close()


def test_invented_models_that_an_engine_answers_displace_real_ones_for_an_hour_at_most() -> None:
    """llama-server accepts any model name, so a served call does not prove that a model is real."""
    store = make(accounts_max=5000)
    for number in range(1000):
        book(store, model=f"invented-{number}")
    book(store, model="real")
    store._sweep_at = 0.0  # as an hour later
    store._delete_expired()
    book(store, model="real")
    rows = {row["model"]: row["calls"] for row in store.report(3600, "model")["rows"]}
    assert (rows["real"], rows["(other)"]) == (1, 1)
    store.close()


def test_a_file_that_was_deleted_is_begun_anew(tmp_path: Path) -> None:
    """Otherwise everything that follows would be written to a file without a name."""
    path, logged = tmp_path / "ledger.sqlite", []
    store = make(path, log_event=lambda event, **fields: logged.append(event))
    book(store, "before")
    assert store.report(3600, "tenant")["total"]["calls"] == 1
    for file in tmp_path.glob("ledger.sqlite*"):
        file.unlink()
    book(store, "after")
    assert [row["tenant"] for row in store.report(3600, "tenant")["rows"]] == ["after"]
    assert logged == ["ledger_reopened"]
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT tenant, calls FROM spent").fetchall() == [("after", 1)]


def test_what_could_not_be_rolled_back_is_not_booked_twice(tmp_path: Path) -> None:
    class Disk(sqlite3.Connection):
        """Fails once, and then fails to roll back, too: the transaction stays open."""

        failing = True

        def __exit__(self, *details: Any) -> Any:
            if not self.failing:
                return super().__exit__(*details)
            self.failing = False
            raise sqlite3.OperationalError("disk I/O error")

    store = make(tmp_path / "ledger.sqlite")
    file = file_of(store)
    file.db.close()
    file.db = sqlite3.connect(tmp_path / "ledger.sqlite", check_same_thread=False, factory=Disk)
    book(store)
    with store._db_lock:
        store._write()
    assert store.failing and file.db.in_transaction
    store._sweep_at = 0.0
    store._delete_expired()  # follows each write, and commits work of its own
    assert store.report(3600, "tenant")["total"]["calls"] == 1
    store.close()


def test_a_ledger_that_is_too_large_loses_its_oldest_minutes(tmp_path: Path) -> None:
    """ledger_bytes_max: a client that invents names must not fill the disk within ledger_days."""
    now, logged = [60.0 * 1000], list[str]()
    path = tmp_path / "ledger.sqlite"
    store = make(path, bytes_max=200_000, clock=lambda: now[0], log_event=lambda event, **_: logged.append(event))
    for minute in range(1000, 1040):
        now[0] = 60.0 * minute
        for n in range(60):
            book(store, model=f"model-{n}-{'x' * 150}")
        store.report(60, "tenant")
    store._sweep_at = 0.0
    store._delete_expired()
    (used,) = file_of(store).db.execute(USED_BYTES).fetchone()
    first, last = file_of(store).db.execute("SELECT min(minute), max(minute) FROM spent").fetchone()
    assert used <= 200_000 and 1000 < first < last == 1039 and "ledger_full" in logged
    store.close()


def test_what_engines_count_is_deleted_with_the_calls_of_its_time(tmp_path: Path) -> None:
    """Many backends fill the file with their counts: deleting only calls would delete all of them, and not be enough."""
    now = [60.0 * 1000]
    store = make(tmp_path / "ledger.sqlite", bytes_max=200_000, clock=lambda: now[0])
    for minute in range(1000, 1040):
        now[0] = 60.0 * minute
        book(store)
        for n in range(100):
            store.add_computed(f"backend-{n}-{'x' * 100}", 1)
        store.report(60, "tenant")
    store._sweep_at = 0.0
    store._delete_expired()
    (used,) = file_of(store).db.execute(USED_BYTES).fetchone()
    left = file_of(store).db.execute("SELECT count(*) FROM spent").fetchone()[0]
    assert used <= 200_000 and 5 < left < 40
    store.close()


@pytest.mark.parametrize("wal_bytes_max", [4096, 10**9])
def test_the_write_ahead_log_is_cut_after_a_checkpoint(tmp_path: Path, wal_bytes_max: int) -> None:
    """wal_bytes_max, for both stores: one large transaction must not take its disk space for ever."""
    opened = {
        "ledger": open_file(str(tmp_path / "ledger"), wal_bytes_max),
        "jobs": database._open(str(tmp_path / "jobs"), MIGRATIONS, wal_bytes_max),
    }
    for name, db in opened.items():
        db.execute("CREATE TABLE filler (data BLOB)")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("INSERT INTO filler VALUES (zeroblob(2000000))")
        db.commit()
        log = tmp_path / f"{name}-wal"
        assert log.stat().st_size > 2_000_000
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        db.execute("INSERT INTO filler VALUES (1)")  # the log begins anew, and is cut then
        db.commit()
        assert (log.stat().st_size <= 64 * 1024) == (wal_bytes_max == 4096)
        db.close()


def test_a_disk_that_hangs_keeps_neither_a_report_nor_the_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_HANGING_S", 0.2)
    disk_works = threading.Event()
    monkeypatch.setattr(LedgerFile, "recover", lambda self: disk_works.wait(60) and False)
    lost: list[dict[str, Any]] = []
    store = make(flush_s=0.01, log_event=lambda event, **fields: lost.append(fields) if "lost" in event else None)
    book(store)
    wait_until(lambda: any(task.name == "ledger" and task.busy_s for task in TASKS), what="a write that hangs")
    with pytest.raises(LedgerBusy, match="did not answer"):
        store.report(3600, "tenant")
    book(store)
    store.close(0.2)
    assert store.dropped == 1, "the one that nobody writes any more"
    assert lost == [{"calls": 1, "in_doubt": 1}]
    disk_works.set()
    store._writer.join(60)
    file_of(store).close()  # which `close` left open for the thread
