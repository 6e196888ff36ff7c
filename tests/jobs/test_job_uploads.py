"""Upload forms designed to be expensive, and stores that cannot be opened at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from hangup.core.jobs import Kind
from hangup.errors import Refusal
from hangup.gateway.jobs.upload import Upload
from hangup.gateway.store.jobs import JobStore, NewItem
from support.job_registry import FakeGateway, open_registry
from support.jobs import CHAT
from support.processes import Gateway, Process, StandIn, reserved_port
from support.raw import Client
from support.waiting import wait_until

START = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
START += b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
END = b"\r\n--b--\r\n"
CALL = {"path": CHAT, "model": "m", "stream": False, "headers": {}}


class Form:
    def __init__(self, upload: Upload, store: JobStore, pauses: list[bool]) -> None:
        self.upload, self.store, self.pauses = upload, store, pauses


@contextlib.asynccontextmanager
async def form() -> AsyncIterator[Form]:
    store, pauses = JobStore(""), list[bool]()
    async with open_registry(store, FakeGateway()) as registry:
        yield Form(Upload(registry, "ann", b"multipart/form-data; boundary=b", pauses.append), store, pauses)


def test_others_have_their_turn_while_much_is_parsed() -> None:
    """Line ends are expensive: each may begin a boundary."""

    async def run() -> None:
        async with form() as sending:
            content = b"\r\n" * 1_000_000
            sending.upload.feed(START + content + END)
            assert sending.pauses == [True], "not all at once: the client waits meanwhile"
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            others = asyncio.create_task(count())
            file = await sending.upload.finish()
            others.cancel()
            assert file.bytes == len(content) and turns > 3
            assert sending.pauses[-1] is False

    asyncio.run(run())


@pytest.mark.parametrize("piece", [17, 5000, 10_000_000])
def test_what_comes_in_pieces_is_the_same(piece: int) -> None:
    async def run() -> None:
        async with form() as sending:
            content = b'{"a": 1}\r\n--\r\n--not-b\n' * 3000
            sent = START + content + END
            for at in range(0, len(sent), piece):
                sending.upload.feed(sent[at : at + piece])
                await asyncio.sleep(0)
            file = await sending.upload.finish()
            parts = [await sending.store.do(lambda n=n: sending.store.files.part(file.key, n)) for n in range(1)]  # type: ignore[misc]
            assert b"".join(part or b"" for part in parts) == content

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent",
    [
        b"".join(b'--b\r\ncontent-disposition: form-data; name="f%d"\r\n\r\nv\r\n' % n for n in range(3000)),
        b"--b\r\n" + b"x: " + b"a" * 100_000,
        b"--b\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(20_000)),
        b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n' + b"v" * 100_000,
    ],
    ids=["many fields", "one long header", "many headers", "one long field"],
)
def test_a_form_that_is_only_work_is_refused(sent: bytes) -> None:
    async def run() -> None:
        async with form() as sending:
            with pytest.raises(Refusal):
                sending.upload.feed(sent)
            assert sending.upload._field_count <= 65, "at once, not when all of it was read"

    asyncio.run(run())


class TestStart:
    @pytest.mark.parametrize("named", [False, True])
    def test_one_that_is_locked_is_opened_when_it_is_free(self, tmp_path: Path, named: bool) -> None:
        """Accepted jobs must not wait until somebody restarts the gateway."""
        with reserved_port() as port:
            self.opened(port, tmp_path, named)

    def opened(self, port: int, tmp_path: Path, named: bool) -> None:
        path = tmp_path / "hangup" / f"jobs-{port}.sqlite"
        store = JobStore(str(path))
        store.jobs.submit("job_a", Kind.CALL, "default", 0.0, CALL, [NewItem("", CHAT, b'{"messages":[],"max_tokens":2}')])
        store.close()
        env = {"XDG_STATE_HOME": str(tmp_path)}
        with StandIn() as engine, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            flags = [
                "--port",
                str(port),
                "--admin-port",
                "0",
                "--upstream",
                engine.url,
                *(["--jobs", str(path)] if named else []),
            ]
            with Process("serve", *flags, env=env) as gateway:
                wait_until(lambda: any('"jobs_disabled"' in row for row in gateway.stdout_lines), what="it to start without")
                other.execute("ROLLBACK")
                wait_until(lambda: any('"job_store_opened"' in row for row in gateway.stdout_lines), what="it to be opened")
                wait_until(lambda: engine.stats()["started"] == 1, what="what was promised to run")

    def test_none_is_opened_during_a_drain(self, tmp_path: Path) -> None:
        """It would start items, and the drain would wait for them."""
        path = tmp_path / "jobs.sqlite"
        JobStore(str(path)).close()
        with StandIn() as engine, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with Gateway(engine.url, jobs=path, drain_s=600) as gateway, Client(gateway.address) as client:
                wait_until(lambda: any(row["event"] == "jobs_disabled" for row in gateway.log()))
                client.chat(stream=True, max_tokens=20000, ignore_eos=True)
                client.read_until(b"data:")
                gateway.signal(signal.SIGTERM)
                wait_until(lambda: any(row["event"] == "drain_started" for row in gateway.log()))
                wait_until(lambda: 'hangup_tasks_running{task="jobs"}' not in gateway.metrics(), what="no more tries")
                other.execute("ROLLBACK")
                client.fin()
                assert gateway.popen.wait(60) == 0
                assert not any(row["event"] == "job_store_opened" for row in gateway.log())

    def test_a_damaged_one(self, tmp_path: Path) -> None:
        path = tmp_path / "jobs.sqlite"
        with StandIn() as engine:
            with Gateway(engine.url, jobs=path) as gateway:
                assert httpx.get(f"{gateway.url}/v1/batches", timeout=60).status_code == 200
            with contextlib.closing(sqlite3.connect(path)) as db:
                (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'worker'").fetchone()
                (size,) = db.execute("PRAGMA page_size").fetchone()
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            with path.open("r+b") as file:
                file.seek((root - 1) * size)
                file.write(b"\xff" * size)
            with Process("serve", "--port", "0", "--upstream", engine.url, "--jobs", str(path)) as process:
                assert process.wait() != 0
                assert any(str(path) in row for row in process.stderr_lines), "the file is named"
