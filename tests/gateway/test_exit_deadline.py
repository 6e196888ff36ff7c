"""`exit_s`: after the drain, the process exits in time whatever hangs, and says what it could not write."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hangup.gateway.closing import ClosingStages
from hangup.gateway.log import Log
from support.jobs import client, line, start_batch
from support.processes import Gateway, StandIn
from support.raw import Client
from support.waiting import wait_until

EXIT_S = 4.0
IN_TIME_S = 20.0  # for drain and exit on a busy machine; without one limit for all, it took 26 s and more


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a SQLite file, as another process would."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.parametrize("workers", [1, 2])
def test_locked_stores_and_open_streams_do_not_keep_the_process(tmp_path: Path, workers: int) -> None:
    jobs, ledger = tmp_path / "jobs.db", tmp_path / "ledger.db"
    settings: dict[str, Any] = {
        "jobs": jobs,
        "ledger": ledger,
        "drain_s": 0.2,
        "exit_s": EXIT_S,
        "slots": 32,
        "workers": workers,
    }
    with StandIn(slots=32, token_s=0.5, answer_tokens=30_000) as engine, Gateway(engine.url, **settings) as gateway:
        clients = [Client(gateway.address) for _ in range(3)]
        for each in clients:
            each.chat(stream=True, max_tokens=30_000)
            each.read_until(b"data: ")
        start_batch(client(gateway.url), [line("a", max_tokens=100)])
        wait_until(lambda: engine.stats()["running"] == 4, what="three streams and an item")
        with locked(jobs), locked(ledger):
            engine.behave(token_s=0.005)
            wait_until(lambda: engine.stats()["running"] == 3, what="the item's answer, which cannot be stored")
            began = time.monotonic()
            gateway.signal(signal.SIGTERM)
            gateway.wait()
            took_s = time.monotonic() - began
        for each in clients:
            each.sock.close()
    assert took_s < IN_TIME_S
    lost = [row for row in gateway.log() if row["event"] == "ledger_entries_lost"]
    assert sum(row["calls"] + row["in_doubt"] for row in lost) >= 3, "the streams"
    lost = [row for row in gateway.log() if row["event"] == "job_results_lost"]
    assert sum(row["results"] + row["in_doubt"] for row in lost) == 1


def test_a_thread_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    """Python would wait for it: here, a reload runs a command that does not end."""
    script, slow = tmp_path / "key.sh", tmp_path / "slow"
    script.write_text(f"if [ -e {slow} ]; then echo > {slow}.running; exec sleep 60 2>&-; fi; echo secret")
    with StandIn() as engine:
        backend = f'[[backend]]\nurl = "{engine.url}"\napi_key_command = "sh {script}"\n'
        limits = f"[limits]\ndrain_s = 1\nexit_s = {EXIT_S}\nsecret_command_s = 600\n"
        with Gateway(config=backend + limits, jobs="none") as gateway:
            slow.touch()
            gateway.signal(signal.SIGHUP)
            wait_until(Path(f"{slow}.running").exists, what="the reload's command")
            began = time.monotonic()
            gateway.signal(signal.SIGTERM)
            assert gateway.wait() == 1
            assert time.monotonic() - began < IN_TIME_S
            assert any("did not end within exit_s" in text for text in gateway.stderr_lines), gateway.stderr_lines


def test_a_stage_that_fails_or_hangs_keeps_no_other(tmp_path: Path) -> None:
    log, done = Log(str(tmp_path / "log"), 100), []

    async def work(name: str, seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)
        done.append(name)

    async def fail() -> None:
        raise OSError("the disk is full")

    async def run() -> None:
        closing = ClosingStages(60.0, log)
        await closing.stage(0.0, first=work("first"), failed=fail(), hanging=work("hanging", 600.0), none=None)
        await closing.stage(second=work("second"))

    asyncio.run(run())
    log.begin()
    log.close()
    assert done == ["first", "second"]
    text = (tmp_path / "log").read_text()
    assert '"event":"shutdown_late"' in text and '"part":"hanging"' in text and "OSError" in text
