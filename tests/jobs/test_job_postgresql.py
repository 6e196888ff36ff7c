"""Jobs on PostgreSQL: what differs from a file. The suites of the store and of several gateways run on both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from hangup.cli.main import main
from hangup.config import LimitSettings
from hangup.core import reasons
from hangup.core.jobs import Cause, ItemState, JobStatus, Kind
from hangup.errors import HangupError, Refusal
from hangup.gateway.jobs.workers import this_host
from hangup.gateway.store import postgresql
from hangup.gateway.store.jobs import Claim, Job, JobStore, NewItem, NewJob, Used
from hangup.gateway.store.jobs.postgresql import MIGRATIONS
from hangup.gateway.store.postgresql import without_password
from hangup.gateway.store.worker_thread import GroupedWork, StoreFailed
from support.job_registry import CALL, FakeGateway, answered, items, open_registry
from support.jobs import start_job, wait_job
from support.postgresql import LOCKED_USER, PostgresServer, postgres_server
from support.processes import Gateway, Process, StandIn
from support.raw import ask
from support.waiting import soon, wait_until

NOBODY_LISTENS = "postgresql://hangup:secret@127.0.0.1:1/jobs"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """This process's server; running again after the test, whatever the test did to it."""
    server = postgres_server()
    yield server
    if not server.running:
        server.start()


@contextlib.asynccontextmanager
async def opened(*urls: str) -> AsyncIterator[list[JobStore]]:
    stores = [JobStore(url) for url in urls]
    try:
        yield stores
    finally:
        for store in stores:
            await asyncio.to_thread(store.close)


def refusal_of(url: str) -> str:
    with pytest.raises(HangupError) as raised:
        JobStore(url)
    return ("later: " if isinstance(raised.value, StoreFailed) else "never: ") + str(raised.value)


class TestOpening:
    """What cannot be used is said in one line; `later` is tried again while live calls are served."""

    def test_nobody_listens(self) -> None:
        text = refusal_of(NOBODY_LISTENS)
        assert text.startswith("later: cannot use postgresql://hangup:***@127.0.0.1:1/jobs: ") and "refused" in text
        assert "\n" not in text and "secret" not in text

    def test_wrong_password(self, server: PostgresServer) -> None:
        server.execute(f"DROP ROLE IF EXISTS {LOCKED_USER}; CREATE ROLE {LOCKED_USER} LOGIN PASSWORD 'right'")
        text = refusal_of(f"postgresql://{LOCKED_USER}:wrong@127.0.0.1:{server.port}/postgres")
        assert text.startswith("never: ") and "password authentication failed" in text and "\n" not in text
        assert "wrong" not in text

    def test_no_such_database(self, server: PostgresServer) -> None:
        text = refusal_of(server.url("nowhere"))
        assert text.startswith("never: ") and '"nowhere" does not exist' in text and "\n" not in text

    def test_a_user_who_may_not_create_tables(self, server: PostgresServer) -> None:
        server.execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
        name = server.new_database().rpartition("/")[2]
        text = refusal_of(server.url(name, "guest"))
        assert text.startswith("never: ") and "permission denied" in text and "\n" not in text

    def test_an_old_server(self, server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgresql, "_OLDEST", 99)
        text = refusal_of(server.url("postgres"))
        assert text.startswith("never: ") and text.endswith("is too old; hangup needs 99 or newer")

    def test_a_schema_from_the_future_is_left_alone(self, server: PostgresServer) -> None:
        url = server.new_database()
        JobStore(url).close()
        name = url.rpartition("/")[2]
        server.execute("UPDATE hangup.version SET version = 99", name)
        text = refusal_of(url)
        assert text.startswith("never: ") and f"newer version of hangup (jobs: schema 99, here {len(MIGRATIONS)})" in text

    def test_without_the_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "psycopg", None)
        assert refusal_of(NOBODY_LISTENS) == "never: PostgreSQL needs the client psycopg: pip install 'hangup[postgresql]'"

    def test_no_password_in_any_form_of_address(self) -> None:
        assert without_password("postgresql://u:p%40s@h/d") == "postgresql://u:***@h/d"
        assert without_password("postgresql://h/d?user=u&password=p&x=1") == "postgresql://h/d?user=u&password=***&x=1"
        assert without_password("postgresql://u@h:5432/d") == "postgresql://u@h:5432/d"
        assert without_password("postgresql://u:p@s/s@h/d") == "postgresql://u:***@h/d"

    @pytest.mark.parametrize("password", ["se%cret", "se@cret", "se/cret", "se cret", "s/e@cret"])
    def test_a_password_that_is_not_encoded(self, password: str) -> None:
        """libpq's own messages would show it, or a part of it as the name of a host."""
        text = refusal_of(f"postgresql://u:{password}@127.0.0.1:1/jobs")
        assert text.startswith("never: cannot use postgresql://u:***@127.0.0.1:1/jobs: the address cannot be read; write @ /")
        assert "cret" not in text

    def test_config_show_hides_passwords(self, capsys: pytest.CaptureFixture[str]) -> None:
        for form in ([], ["--json"]):
            assert main(["config", "show", *form, "--jobs", NOBODY_LISTENS, "--ledger", NOBODY_LISTENS]) == 0
            text = capsys.readouterr().out
            assert ":secret" not in text and text.count("hangup:***@127.0.0.1:1/jobs") == 2

    def test_a_gateway_that_freezes_while_it_migrates(self, server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
        import psycopg

        monkeypatch.setattr(postgresql, "_SESSION", postgresql._SESSION.replace("10s", "1s"))
        url, found = server.new_database(), list[str]()
        with psycopg.connect(url, autocommit=True) as frozen:
            frozen.execute("SELECT pg_advisory_lock(%s)", (postgresql._MIGRATING,))
            opening = threading.Thread(target=lambda: found.append(refusal_of(url)), daemon=True)
            opening.start()
            opening.join(30)
        assert found and found[0].startswith("later: cannot use ") and "lock timeout" in found[0]

    def test_a_host_that_vanishes_is_given_up(self, server: PostgresServer) -> None:
        """Keepalives are not sent while data is not acknowledged; without a limit the kernel tries for a quarter of an hour."""
        connection = postgresql.PostgresConnection(server.new_database(), "jobs", MIGRATIONS)
        connection.connect()
        assert connection._real is not None
        with socket.socket(fileno=os.dup(connection._real.fileno())) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
        connection.close()

    def test_many_at_once(self, server: PostgresServer) -> None:
        """Gateways that start together on an empty database: one creates the tables, none fails."""

        async def run() -> None:
            url = server.new_database()
            stores = await asyncio.gather(*(asyncio.to_thread(JobStore, url) for _ in range(4)))
            slots = {store._database.db.slot for store in stores}  # type: ignore[union-attr]
            assert len(slots) == 4, "each counts usage in its own rows"
            for store in stores:
                await asyncio.to_thread(store.close)

        asyncio.run(run())


def test_a_gateway_with_a_wrong_address_says_so_and_ends(server: PostgresServer) -> None:
    flags = ("--port", "0", "--upstream", "http://127.0.0.1:9", "--jobs", server.url("nowhere"))
    with Process("serve", *flags) as process:
        process.find_line('cannot use postgresql://.*database "nowhere" does not exist')
        assert process.wait() != 0


def test_a_gateway_whose_server_is_down_serves_and_opens_its_jobs_later(server: PostgresServer) -> None:
    url = server.new_database()
    server.stop()
    with StandIn() as engine, Gateway(engine.url, jobs=url) as gateway:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        assert httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
        assert httpx.get(f"{gateway.url}/v1/batches", timeout=60).status_code == 503
        server.start()
        wait_until(lambda: any(row["event"] == "job_store_opened" for row in gateway.log()), what="its jobs")
        id = start_job(gateway.url, max_tokens=2)["id"]
        assert wait_job(gateway.url, id)["status"] == "completed"


class TestServerGoes:
    def test_results_and_cancels_wait_and_engines_stop_at_once(self, server: PostgresServer) -> None:
        async def run() -> None:
            host, store = FakeGateway(), JobStore(server.new_database())
            async with open_registry(store, host) as registry:
                done = await registry.submit("job_a", Kind.CALL, "ann", CALL, [NewItem("", "/", b"{}")], lease_s=600)
                gone = await registry.submit("job_b", Kind.CALL, "ann", CALL, [NewItem("", "/", b"{}")], lease_s=600)
                await soon(lambda: len(host.items) == 2)
                await asyncio.to_thread(server.stop)
                answered(next(item for item in host.items if item.claim.job_id == "job_a"))
                with contextlib.suppress(StoreFailed):
                    await registry.cancel(gone, Cause.CANCELLED)
                stopped = next(item for item in host.items if item.claim.job_id == "job_b")
                assert stopped.stopping is reasons.JOB_CANCELLED, "it does not wait for the store"
                await soon(lambda: "job_store_failed" in host.events)
                assert registry.runner.writer.held_bytes > 0
                await asyncio.to_thread(server.start)
                await soon(lambda: "job_store_recovered" in host.events)
                await soon(lambda: not registry.active_jobs())
                statuses = await store.do(lambda: [store.jobs.get(job.key).status for job in (done, gone)])
                assert statuses == [JobStatus.COMPLETED, JobStatus.CANCELLED] and not host.faults

        asyncio.run(run())

    def test_a_connection_that_was_lost_while_idle_fails_no_work(self, server: PostgresServer) -> None:
        """The server was restarted, or something on the way forgot the connection."""

        async def run() -> None:
            async with opened(server.new_database()) as (store,):
                await store.do(lambda: submitted(store, "job_a"))
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
                await store.do(lambda: submitted(store, "job_b"))
                assert [job.id for job in await store.do(store.jobs.active)] == ["job_a", "job_b"]

        asyncio.run(run())

    def test_a_crash_loses_nothing_that_was_acknowledged(self, server: PostgresServer) -> None:
        async def run() -> None:
            async with opened(server.new_database()) as (store,):
                job = await store.do(lambda: submitted(store, "job_a"))
                await asyncio.to_thread(partial(server.stop, crash=True))
                with pytest.raises(StoreFailed):
                    await store.do(store.jobs.active)
                await asyncio.to_thread(server.start)
                assert [found.key for found in await store.do(store.jobs.active)] == [job.key]

        asyncio.run(run())


def new_job(id: str) -> NewJob:
    return NewJob(id, Kind.CALL, "ann", 1.0, {}, [NewItem("", "/", b"{}")])


def submitted(store: JobStore, id: str, count: int = 1) -> Job:
    items = [NewItem(f"c{n}", "/", b"{}") for n in range(count)]
    return store.jobs.submit(id, Kind.BATCH if count > 1 else Kind.CALL, "ann", 1.0, {}, items)


def test_an_id_that_postgresql_cannot_store_is_not_found(server: PostgresServer) -> None:
    async def run() -> None:
        async with opened(server.new_database()) as (store,):
            assert await store.do(lambda: store.jobs.find("job\0a", "ann")) is None
            key = await store.do(lambda: store.files.begin("file-1", "ann", 1.0))
            file = await store.do(lambda: store.files.mark_ready(key, "batch", "a\0b", None))
            assert file.filename == "a\N{REPLACEMENT CHARACTER}b"

    asyncio.run(run())


class TestTogether:
    def test_what_one_submission_breaks_the_others_keep(self, server: PostgresServer) -> None:
        async def run() -> None:
            async with opened(server.new_database()) as (store,):
                await store.do(lambda: submitted(store, "job_x"))
                work = [GroupedWork(store.jobs.submit_all, new_job(id)) for id in ("job_a", "job_x", "job_b")]
                results = await asyncio.gather(*(store.do(piece) for piece in work), return_exceptions=True)
                assert "job_id_key" in str(results[1]), "its id is taken"
                assert [job.id for job in await store.do(store.jobs.active)] == ["job_x", "job_a", "job_b"]
                assert (await store.do(lambda: store.jobs.used("ann"))).jobs == 3

        asyncio.run(run())

    def test_many_submissions_take_as_many_round_trips_as_one(self, server: PostgresServer) -> None:
        async def run() -> None:
            store = JobStore(server.new_database())
            async with open_registry(store, FakeGateway(room=0), ticks=False) as registry:
                statements: list[str] = []
                connection: Any = store._database.db
                execute, may_go_on = connection.execute, threading.Event()

                def counted(statement: str, *values: Any) -> Any:
                    statements.append(statement)
                    return execute(statement, *values)

                connection.execute = counted
                waiting = asyncio.create_task(store.do(lambda: may_go_on.wait(60)))  # all of them arrive meanwhile
                jobs = [
                    asyncio.create_task(registry.submit(f"job_{n}", Kind.CALL, f"t{n % 3}", CALL, items(1), lease_s=600))
                    for n in range(50)
                ]
                await soon(lambda: len(store._database._work) == 50)
                may_go_on.set()
                assert await waiting
                submitted = await asyncio.gather(*jobs)
                assert [job.id for job in submitted] == [f"job_{n}" for n in range(50)]
                assert sorted(job.key for job in submitted) == [job.key for job in submitted], "in the order of their arrival"
                inserts = [statement for statement in statements if "INSERT INTO job" in statement]
                assert len(inserts) == 1
                found = await store.do(lambda: [store.jobs.get(job.key) for job in submitted])
                assert [(job.id, job.tenant, job.tally.total, job.about) for job in found] == [
                    (job.id, job.tenant, 1, job.about) for job in submitted
                ]
                assert (await store.do(lambda: store.jobs.used_by(["t0", "t1", "t2", "none"]))) == {
                    "t0": Used(17, 17, 34),
                    "t1": Used(17, 17, 34),
                    "t2": Used(16, 16, 32),
                    "none": Used(0, 0, 0),
                }

        asyncio.run(run())

    def test_quotas_count_what_the_same_transaction_submits(self, server: PostgresServer) -> None:
        async def run() -> None:
            store = JobStore(server.new_database())
            host = FakeGateway(room=0, limits=LimitSettings(jobs_max=5))
            async with open_registry(store, host) as registry:
                item = [NewItem("", "/", b"{}")]
                submits = [registry.submit(f"job_{n}", Kind.CALL, "ann", CALL, item, lease_s=600) for n in range(12)]
                results = await asyncio.gather(*submits, return_exceptions=True)
                assert sum(isinstance(result, Refusal) for result in results) == 7
                assert (await store.do(lambda: store.jobs.used("ann"))) == Used(5, 5, 10)

        asyncio.run(run())

    def test_several_gateways_end_each_item_once_and_wait_for_none_in_a_circle(self, server: PostgresServer) -> None:
        """Three stores claim, finish, give back, touch and cancel items of the same jobs; no transaction may fail."""

        async def run() -> None:
            url = server.new_database()
            ended: Counter[tuple[int, int]] = Counter()
            async with opened(url, url, url) as stores:
                jobs = [await stores[0].do(lambda n=n: submitted(stores[0], f"b{n}", 40)) for n in range(6)]  # type: ignore[misc]
                keys = [job.key for job in jobs]

                async def work(store: JobStore, number: int) -> None:
                    worker = await store.do(lambda: store.workers.register("h", str(number)))
                    while claims := await store.do(lambda: store.jobs.claim(worker, "ann", 7, 1 << 20, 2.0)):
                        given_back = 1 if number and len(claims) > 1 else 0  # the last ones end, whoever has them
                        back, done = claims[:given_back], claims[given_back:]
                        written = await store.do(lambda claims=claims, b=back, d=done: write(store, keys, b, d))  # type: ignore[misc]
                        ended.update((claim.job_key, claim.n) for claim, ok in zip(done, written, strict=True) if ok)
                        await store.do(lambda: store.jobs.touch(reversed(keys)))

                await asyncio.gather(*(work(store, n) for n, store in enumerate(stores)))
                await stores[0].do(lambda: finish_rest(stores[0]))
                found = await stores[0].do(lambda: [stores[0].jobs.get(key) for key in keys])
                used = await stores[0].do(lambda: stores[0].jobs.used("ann"))
            assert [job.status for job in found[:-1]] == [JobStatus.COMPLETED] * 5
            assert set(ended.values()) == {1} and len(ended) >= 5 * 30
            assert (used.jobs, used.items) == (0, 0)

        def write(store: JobStore, keys: list[int], back: list[Claim], done: list[Claim]) -> list[bool]:
            store.jobs.lock({*keys[-1:], *(claim.job_key for claim in (*back, *done))})
            if len(done) % 2:
                store.jobs.cancel(keys[-1], Cause.CANCELLED, 3.0)
            store.jobs.give_back(back, 3.0)
            return [store.jobs.finish(claim, ItemState.SUCCEEDED, 3.0, b"{}") is not None for claim in done]

        def finish_rest(store: JobStore) -> None:
            worker = store.workers.register("h", "last")
            while claims := store.jobs.claim(worker, "ann", 100, 1 << 20, 4.0):
                for claim in claims:
                    store.jobs.finish(claim, ItemState.SUCCEEDED, 4.0, b"{}")

        asyncio.run(run())

    def test_a_gateway_that_freezes_in_a_transaction_is_cut_off(
        self, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgresql, "_SESSION", postgresql._SESSION.replace("10s", "1s"))

        async def run() -> None:
            url = server.new_database()
            async with opened(url, url) as (frozen, other):
                job = await other.do(lambda: submitted(other, "job_a"))
                locked, may_thaw = threading.Event(), threading.Event()

                def freeze() -> None:
                    frozen.jobs.lock([job.key])
                    locked.set()
                    may_thaw.wait(60)

                holding = asyncio.create_task(frozen.do(freeze))
                assert await asyncio.to_thread(locked.wait, 60)
                cancelled = None
                async with asyncio.timeout(50):
                    while cancelled is None:
                        with contextlib.suppress(StoreFailed):  # it waits for the row for a second at most
                            cancelled = await other.do(lambda: other.jobs.cancel(job.key, Cause.CANCELLED, 2.0))
                assert cancelled.status is JobStatus.CANCELLED and not holding.done()
                may_thaw.set()
                with pytest.raises(StoreFailed):
                    await holding
                assert await frozen.do(frozen.jobs.active) == [], "and it goes on with a new connection"

        asyncio.run(run())


@pytest.mark.parametrize("how", ["its worker is dead", "its worker is not in the table", "we do not know that we claimed it"])
def test_what_a_gateway_requeues_it_runs_itself(server: PostgresServer, how: str) -> None:
    """It may be the only one left, and nobody reads its own changes."""

    async def run() -> None:
        host, store = FakeGateway(), JobStore(server.new_database())
        async with open_registry(store, host, ticks=False) as registry:
            dead = await store.do(lambda: store.workers.register(this_host(), "999999999-1"))
            worker = registry.worker if how.startswith("we") else dead
            await store.do(lambda: submitted(store, "batch_a", 3))
            await store.do(lambda: store.jobs.claim(worker, "ann", 3, 1 << 20, 2.0))
            if "table" in how:
                await store.do(lambda: store.workers.remove(dead))
            for _ in range(2):
                await registry._read_changes(0.0)
                await registry._heartbeat(0.0)
            await soon(lambda: len(host.items) == 3)

    asyncio.run(run())


def test_changes_of_a_transaction_that_ends_late_are_not_missed(server: PostgresServer) -> None:
    """A change may become visible after a later one: numbers in the order of their assignment would skip it."""

    async def run() -> None:
        url = server.new_database()
        async with opened(url, url, url) as (early, late, reader):
            first = await early.do(lambda: submitted(early, "job_a"))
            since, _ = await reader.do(lambda: reader.jobs.changes(None))
            touched, may_end = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()

            def slowly() -> None:
                early.jobs.touch([first.key])
                loop.call_soon_threadsafe(touched.set)
                asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result(60)

            open_transaction = asyncio.create_task(early.do(slowly))
            await asyncio.wait_for(touched.wait(), 60)
            await late.do(lambda: submitted(late, "job_b"))
            since, jobs = await reader.do(lambda: reader.jobs.changes(since))
            assert [job.id for job in jobs] == ["job_b"]
            may_end.set()
            await open_transaction
            _, jobs = await reader.do(lambda: reader.jobs.changes(since))
            assert "job_a" in [job.id for job in jobs]
            _, own = await early.do(lambda: early.jobs.changes(0))
            assert [job.id for job in own] == ["job_b"], "nobody reads its own changes"

    asyncio.run(run())


def test_the_log_holds_no_password(server: PostgresServer) -> None:
    url = NOBODY_LISTENS
    with StandIn() as engine, Gateway(engine.url, jobs=url) as gateway:
        wait_until(lambda: any(row["event"] == "jobs_disabled" for row in gateway.log()), what="the reason")
        assert "secret" not in json.dumps(gateway.log())


def test_a_password_from_a_file_is_read_again(server: PostgresServer, tmp_path: Path) -> None:
    """Jobs and ledger log in with it. Once the server wants another one, a reload is enough, and nothing shows either."""
    file, url = tmp_path / "password", server.new_database()
    locked = url.replace("hangup@", f"{LOCKED_USER}@")
    rights = f"GRANT ALL ON DATABASE {url.rpartition('/')[2]} TO {LOCKED_USER}"
    server.execute(f"DROP ROLE IF EXISTS {LOCKED_USER}; CREATE ROLE {LOCKED_USER} LOGIN PASSWORD 'planted 1@/'; {rights}")
    file.write_text("planted 1@/\n")
    with StandIn() as engine:
        text = "".join(f'{name} = "{locked}"\n{name}_password_file = "{file}"\n' for name in ("jobs", "ledger"))
        with Gateway(config=f'{text}[limits]\nledger_flush_s = 0.05\n[[backend]]\nurl = "{engine.url}"\n') as gateway:
            assert ask_for_job(gateway).status == 202
            server.execute(f"ALTER ROLE {LOCKED_USER} PASSWORD 'planted 2'")
            cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{LOCKED_USER}'"
            server.execute(cut)
            wait_until(lambda: ask_for_job(gateway).status == 503, what="jobs fail without the new password")
            file.write_text("planted 2\n")
            gateway.signal(signal.SIGHUP)
            gateway.find_line("configuration reloaded")
            wait_until(lambda: ask_for_job(gateway).status == 202, what="a job with the new password")
            spent = partial(server.execute, "SELECT 1 FROM hangup.spent", url.rpartition("/")[2])
            wait_until(spent, what="the job in the ledger")
            log = json.dumps(gateway.log())
        assert "planted" not in log + "".join(gateway.stdout_lines + gateway.stderr_lines)


def ask_for_job(gateway: Gateway) -> Any:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    return ask(gateway.address, "/v1/chat/completions", body, {"Prefer": "respond-async"})
