"""`cancelled` means that the engine has stopped, or that this cannot be known."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from support.processes import Gateway, StandIn
from support.waiting import wait_until

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "x"}],
    "max_tokens": 30_000,
    "ignore_eos": True,
    "stream": True,
}


def request(gateway: Gateway, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(gateway.url + path, data, {"content-type": "application/json", **headers}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.loads(answer.read()))


@pytest.mark.parametrize(("engine_kind", "deaf", "release"), [("openai", True, "unverified"), ("standin", False, "verified")])
def test_what_is_not_verified_says_so(tmp_path: Path, engine_kind: str, deaf: bool, release: str) -> None:
    with (
        StandIn(slots=4, deaf=deaf, answer_tokens=30_000, token_s=0.02) as engine,
        Gateway(engine.url, engine=engine_kind, slots=4, jobs=f"{tmp_path}/jobs.db") as gateway,
    ):
        job = request(gateway, "POST", "/v1/chat/completions", BODY, Prefer="respond-async")
        wait_until(lambda: engine.stats()["tokens"] > 2, what="tokens")
        ended = request(gateway, "DELETE", f"/v1/jobs/{job['id']}")
        assert (ended["status"], ended["release"]) == ("cancelled", release)
        assert (engine.stats()["running"] == 0) is (release == "verified")
        assert request(gateway, "GET", f"/v1/jobs/{job['id']}")["release"] == release


def test_a_job_that_never_ran_has_none(tmp_path: Path) -> None:
    with (
        StandIn(slots=1, answer_tokens=30_000, token_s=0.02) as engine,
        Gateway(engine.url, slots=1, jobs=f"{tmp_path}/jobs.db") as gateway,
    ):
        first = request(gateway, "POST", "/v1/chat/completions", BODY, Prefer="respond-async")
        wait_until(lambda: engine.stats()["running"] == 1, what="the first one")
        waits = request(gateway, "POST", "/v1/chat/completions", BODY, Prefer="respond-async")
        ended = request(gateway, "DELETE", f"/v1/jobs/{waits['id']}")
        assert (ended["status"], ended["release"]) == ("cancelled", None)
        request(gateway, "DELETE", f"/v1/jobs/{first['id']}")
