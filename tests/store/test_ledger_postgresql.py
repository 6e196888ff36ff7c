"""The ledger on PostgreSQL: several gateways, and a server that is away. Its sums are tested with those of a file."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hangup.core.account import Account, Entry
from hangup.errors import HangupError, LedgerBusy
from hangup.gateway.store.jobs import JobStore
from hangup.gateway.store.ledger import LedgerStore
from hangup.gateway.store.ledger_tables import LedgerServer
from support.postgresql import postgres_server
from support.waiting import wait_until


def make(url: str, **options: Any) -> LedgerStore:
    return LedgerStore(url, **{"flush_s": 3600.0, "days": 30.0, "accounts_max": 1000, **options})


def book(store: LedgerStore, tenant: str) -> None:
    store.add(Entry(tenant, "m", "b", "completed", Account(calls=1, tokens_delivered=2)))


def test_several_gateways_add_to_the_same_rows() -> None:
    """They write the same keys at the same time; what one writes last another writes first, in the order of their calls."""
    url = postgres_server().new_database()
    stores = [make(url, clock=lambda: 6e8) for _ in range(3)]
    failures: list[str] = []
    for store in stores:
        store._log_event = lambda event, **fields: failures.append(f"{event} {fields}")

    def work(store: LedgerStore, tenants: list[str]) -> None:
        for _ in range(20):
            for tenant in tenants:
                book(store, tenant)
            store.add_computed("b", 5)
            with store._db_lock:
                store._write()

    tenants = [f"t{n}" for n in range(30)]
    orders = (tenants, tenants[::-1], tenants[15:] + tenants[:15])
    threads = [threading.Thread(target=work, args=pair) for pair in zip(stores, orders, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    report = stores[0].report(1e9, "tenant")
    assert not failures
    assert {row["tenant"]: row["calls"] for row in report["rows"]} == dict.fromkeys(tenants, 60)
    assert report["engines"] == {"b": {"computed": 300, "uncounted": 0, "booked": 3600}}
    for store in stores:
        store.close()


def test_a_server_that_is_away_costs_nothing_but_time() -> None:
    server, logged = postgres_server(), list[str]()
    url = server.new_database()
    server.stop()
    try:
        store = make(url, flush_s=0.05, log_event=lambda event, **fields: logged.append(event))  # it starts without the server
        book(store, "before")
        wait_until(lambda: "ledger_failed" in logged, what="the failure to be noticed")
        with pytest.raises(LedgerBusy, match="cannot be used"):
            store.report(3600, "tenant")
        server.start()
        wait_until(lambda: "ledger_recovered" in logged, what="the server")
        server.stop()
        book(store, "between")
        wait_until(lambda: logged.count("ledger_failed") == 2, what="the second failure")
    finally:
        if not server.running:
            server.start()
    wait_until(lambda: logged.count("ledger_recovered") == 2, what="the server")
    assert {row["tenant"] for row in store.report(3600, "tenant")["rows"]} == {"before", "between"}
    store.close()
    assert store.dropped == 0


@pytest.mark.parametrize("reached", [True, False], ids=["it was committed", "it was not"])
def test_a_commit_whose_answer_is_lost_is_booked_once(reached: bool) -> None:
    store = make(postgres_server().new_database())
    assert isinstance(store._tables, LedgerServer)
    connection = store._tables._connection
    execute = connection.execute

    def lose(statement: str, values: Any = (), /) -> Any:
        if statement != "COMMIT":
            return execute(statement, values)
        connection.execute = execute  # type: ignore[method-assign]
        if reached:
            execute(statement)
        assert connection._real is not None
        connection._real.close()
        raise connection.psycopg.OperationalError("the connection is lost")

    connection.execute = lose  # type: ignore[method-assign]
    book(store, "a")
    store.add_computed("b", 5)
    with store._db_lock:
        assert not store._write()
    book(store, "a")
    wait_until(lambda: store.report(3600, "tenant")["total"]["calls"] >= 2, what="both calls")
    report = store.report(3600, "tenant")
    assert report["total"]["calls"] == 2 and report["engines"]["b"]["computed"] == 5
    store.close()


def test_jobs_and_ledger_share_a_database() -> None:
    url = postgres_server().new_database()
    jobs, ledger = JobStore(url), make(url)
    book(ledger, "a")
    assert ledger.report(3600, "tenant")["total"]["calls"] == 1
    ledger.close()
    jobs.close()


def test_a_schema_from_the_future_is_left_alone() -> None:
    server = postgres_server()
    url = server.new_database()
    make(url).close()
    server.execute("UPDATE hangup.version SET version = 99", url.rpartition("/")[2])
    with pytest.raises(HangupError, match=r"newer version of hangup \(ledger: schema 99, here 1\)"):
        make(url)
