"""A gateway in front of a hosted provider that runs the jobs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx

from support.hosted import Hosted
from support.processes import HANGUP, Gateway
from support.waiting import wait_until

BATCH: Any = {"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
REQUESTS: Any = [
    {"custom_id": f"r{n}", "params": {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]}}
    for n in range(3)
]


@contextmanager
def at_provider(env: dict[str, str] | None = None, config: str = "", **settings: Any) -> Iterator[tuple[Gateway, Hosted]]:
    """Start a gateway whose regular polls are rare, so that every request to the provider has a cause; polls after a cancel
    are fast."""
    quick = {"provider_look_s": 600, "provider_poll_s": 0.05, "provider_poll_max_s": 0.2, **settings}
    with Hosted() as hosted, Gateway(hosted.url, jobs="provider", config=config, env=env, **quick) as gateway:
        yield gateway, hosted


def claude(url: str) -> anthropic.Anthropic:
    headers = {"x-api-key": "a key"}  # where a provider looks for it, whichever header this SDK chooses
    return anthropic.Anthropic(base_url=url, api_key="a key", default_headers=headers, max_retries=0, timeout=60)


def job(gateway: Gateway, id: str) -> dict[str, Any]:
    answer = httpx.get(f"{gateway.admin_url}/api/jobs/{id}", timeout=60)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def wait_status(gateway: Gateway, id: str, status: str) -> dict[str, Any]:
    return wait_until(lambda: (shown := job(gateway, id))["status"] == status and shown, what=f"{id} {status}") or {}


def wait_event(gateway: Gateway, event: str, **fields: Any) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        rows = (row for row in gateway.log() if row.get("event") == event)
        return next((row for row in rows if all(row[name] == value for name, value in fields.items())), None)

    return wait_until(look, what=f"{event} {fields} in the log") or {}


def delete(gateway: Gateway, path: str) -> httpx.Response:
    return httpx.delete(f"{gateway.admin_url}{path}", headers={"x-hangup": "1"}, timeout=60)


def command(gateway: Gateway, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HANGUP, "jobs", *words, "--admin", gateway.admin_url], capture_output=True, text=True, timeout=60, check=False
    )
