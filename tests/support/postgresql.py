"""A PostgreSQL server of the tests' own, in a temporary folder: one for each process that runs tests."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

_START_S = 60
_USER = "hangup"
LOCKED_USER = "locked"  # who needs a password


def _program(name: str) -> str | None:
    """Return the path of one of the server's programs; Debian keeps them out of PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name) or next((str(folder / name) for folder in folders if (folder / name).exists()), None)
    return str(Path(found).resolve()) if found else None


class PostgresServer:
    """A server that may be stopped, killed and started again. Unless it is `durable`, its data is not flushed to disk."""

    def __init__(self, *, durable: bool = False) -> None:
        self._settings = [] if durable else ["fsync=off", "shared_buffers=16MB"]
        self._folder = Path(tempfile.mkdtemp(prefix="hangup-pg-"))
        self.data = self._folder / "data"
        # It refuses to run as root.
        self._as: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        if self._as:
            shutil.chown(self._folder, "nobody", "nogroup")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(self.data), "-A", "trust", "-U", _USER, "-E", "UTF8", "--locale=C", "--no-sync")
        access = self.data / "pg_hba.conf"
        access.write_text(f"host all {LOCKED_USER} 127.0.0.1/32 scram-sha-256\n{access.read_text()}")
        self.start()

    def _run(self, name: str, *arguments: str) -> None:
        program = _program(name)
        assert program is not None
        subprocess.run([program, *arguments], check=True, capture_output=True, cwd=self._folder, **self._as, timeout=300)

    def start(self) -> None:
        program = _program("postgres")
        assert program is not None and self._process is None
        settings = [f"port={self.port}", f"unix_socket_directories={self._folder}", *self._settings]
        options = [part for setting in settings for part in ("-c", setting)]
        log = (self._folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [program, "-D", str(self.data), *options], stdout=log, stderr=log, cwd=self._folder, **self._as
            )
        self._wait()

    def _wait(self) -> None:
        import psycopg

        until = time.monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > until:
                    raise AssertionError((self._folder / "log").read_text()[-2000:]) from None
                time.sleep(0.05)
            else:
                return

    @property
    def running(self) -> bool:
        return self._process is not None

    def stop(self, *, crash: bool = False) -> None:
        """Stop it and cut its connections."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGQUIT if crash else signal.SIGINT)
            process.wait(60)

    def cpu_s(self) -> float:
        """Return the CPU time of all its processes that run now."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in children]
        return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")

    def url(self, database: str, user: str = _USER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        import psycopg

        limit = f"-c statement_timeout={_START_S}s"  # a lock is no reason to hang
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=_START_S, options=limit) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def new_database(self) -> str:
        """Return the address of an empty database."""
        name = f"test{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


@cache
def postgres_server() -> PostgresServer:
    """Return this process's server; skip the test if none is installed, unless POSTGRESQL_TESTS=required."""
    if _program("postgres") is None or _program("initdb") is None:
        if os.environ.get("POSTGRESQL_TESTS") == "required":
            pytest.fail("PostgreSQL is not installed: apt-get install postgresql")
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    server = PostgresServer()
    atexit.register(server.close)
    return server


def new_store(kind: str, folder: Path) -> str:
    """Return the path of a new job store: a file, or the address of a database."""
    return str(folder / "jobs.sqlite") if kind == "sqlite" else postgres_server().new_database()


STORES = ("sqlite", "postgresql")
