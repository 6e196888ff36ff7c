"""Files, databases and configurations of earlier versions open in this one; those of a later version are refused.

The fixtures are dumps of what earlier versions left behind when they were killed: calls in the ledger, a completed batch, and
one whose engine hung. "early" and "middle" are from before 0.1, with schemas 1 and 2 of the job store. tests/fixtures/upgrades
never changes; a later release adds files.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hangup.config.load import load
from hangup.errors import HangupError
from hangup.gateway.store.ledger_tables import SUMS, VERSION
from hangup.gateway.workers.channel import packed, unpacked
from support.postgresql import postgres_server
from support.processes import Gateway, Process, StandIn
from support.waiting import wait_until

FIXTURES = Path(__file__).parent.parent / "fixtures" / "upgrades"
MADE_AT = 1_794_842_800.0  # when the fixtures were made: all their times are moved, so that nothing has expired meanwhile


def moved(text: str) -> str:
    later = time.time() - MADE_AT
    # One pass: a time that was moved must not be taken for one that was not.
    text = re.sub(r"\b(?:1\.79\d+e\+09|179[34]\d{6}\.\d+)\b", lambda match: repr(float(match[0]) + later), text)
    return re.sub(r"\b29914\d{3}\b", lambda match: str(int(match[0]) + int(later // 60)), text)  # minutes of the ledger


def restored(tmp_path: Path, name: str) -> str:
    path = tmp_path / f"{name}.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(moved((FIXTURES / f"{name}.sql").read_text()))
    return str(path)


def restored_on_a_server() -> str:
    server = postgres_server()
    url = server.new_database()
    server.execute(moved((FIXTURES / "postgresql-0.1.sql").read_text()), url.rpartition("/")[2])
    return url


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def check_that_everything_is_there(jobs: str, ledger: str) -> None:
    with StandIn(token_s=0.001) as engine:
        settings: dict[str, Any] = {"jobs": jobs, "ledger": ledger, "ledger_flush_s": 0.05, "job_worker_silence_s": 5}
        with Gateway(engine.url, **settings) as gateway:
            url = f"{gateway.url}/v1/batches"
            batches = {batch["id"]: batch for batch in json.loads(get(url))["data"]}
            (done,) = [batch for batch in batches.values() if batch["status"] == "completed"]
            rows = [json.loads(line) for line in get(f"{gateway.url}/v1/files/{done['output_file_id']}/content").splitlines()]
            assert sorted(row["custom_id"] for row in rows) == ["c0", "c1"]
            assert all(row["response"]["status_code"] == 200 for row in rows)
            (left,) = set(batches) - {done["id"]}
            wait_until(lambda: json.loads(get(f"{url}/{left}"))["status"] == "completed", what="the batch that was left")
            assert json.loads(get(f"{url}/{left}"))["request_counts"] == {"total": 2, "completed": 2, "failed": 0}

            def calls() -> int:
                return int(json.loads(get(f"{gateway.admin_url}/api/report?since=86400&by=tenant"))["total"]["calls"])

            wait_until(lambda: calls() == 3 + 2 + 2, what="the calls of both versions in the ledger")


@pytest.mark.parametrize("name", ["early", "middle", "0.1"])
def test_files(name: str, tmp_path: Path) -> None:
    check_that_everything_is_there(restored(tmp_path, f"jobs-{name}"), restored(tmp_path, f"ledger-{name}"))


def test_a_server() -> None:
    url = restored_on_a_server()
    check_that_everything_is_there(url, url)


def test_a_configuration() -> None:
    """It has every setting of 0.1: one that is renamed or removed must still be read, or at least be ignored."""
    settings = load(FIXTURES / "hangup-0.1.toml").settings
    assert settings.limits.gap_s == 60 and settings.backend[0].url == "http://127.0.0.1:9"


@pytest.mark.parametrize(("setting", "fixture"), [("jobs", "jobs-0.1"), ("ledger", "ledger-0.1")])
def test_a_file_of_a_later_version_is_refused(setting: str, fixture: str, tmp_path: Path) -> None:
    path = restored(tmp_path, fixture)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    before = Path(path).read_bytes()
    with Process(
        "serve", "--port", "0", "--admin-port", "0", "--upstream", "http://127.0.0.1:9", f"--{setting}", path
    ) as refused:
        assert refused.wait() == 1
    (line,) = refused.stderr_lines
    assert f"{path} was written by a newer version of hangup (schema 99, here " in line
    assert Path(path).read_bytes() == before, "it is left as it was"


def test_the_ledgers_columns_belong_to_its_version() -> None:
    """An older version would not refuse a file with more columns, but fail at each write, unless the number changes as well."""
    (columns,) = re.findall(r"CREATE TABLE spent \((.*?)PRIMARY KEY", (FIXTURES / "ledger-0.1.sql").read_text(), re.S)
    assert tuple(re.findall(r"(\w+) REAL", columns)) == SUMS or VERSION > 1


def test_workers_of_another_version_take_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle of another version would be read with its values in the wrong fields."""
    configuration = load(FIXTURES / "hangup-0.1.toml")
    text = packed(configuration)
    assert unpacked(text).settings == configuration.settings
    monkeypatch.setattr("hangup.gateway.workers.channel.installation", lambda: "0.2.0-0123456789ab")
    with pytest.raises(HangupError, match=r"hangup was upgraded from 0\.\S+ to 0\.2\.0-0123456789ab while it ran: restart it"):
        unpacked(text)
