"""Jobs as a client uses them: creates batches from files and waits for their results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx
import openai

from support.waiting import PATIENCE_S, wait_until

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "cancelled", "expired")


def line(custom_id: str, url: str = CHAT, **body: Any) -> str:
    request = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}], **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": request})


def client(url: str, key: str = "any") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)


def upload(sdk: openai.OpenAI, lines: Iterable[str]) -> str:
    return sdk.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch").id


def start_batch(sdk: openai.OpenAI, lines: Iterable[str], url: str = CHAT, window: Any = "24h") -> str:
    return sdk.batches.create(input_file_id=upload(sdk, lines), endpoint=url, completion_window=window).id  # type: ignore[arg-type]


def wait_batch(sdk: openai.OpenAI, id: str, *statuses: str, timeout_s: float = PATIENCE_S) -> Any:
    wanted = statuses or ENDED

    def look() -> Any:
        batch = sdk.batches.retrieve(id)
        return batch if batch.status in wanted else None

    return wait_until(look, timeout_s, f"{id} {' or '.join(wanted)}")


def results(sdk: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(row) for row in sdk.files.content(file_id).text.splitlines()]


def start_job(url: str, *, lease_s: float | None = None, path: str = CHAT, **body: Any) -> dict[str, Any]:
    headers = {"prefer": "respond-async"} | ({"x-hangup-lease": str(lease_s)} if lease_s is not None else {})
    request = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **body}
    answer = httpx.post(url + path, json=request, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 202, answer.text
    assert answer.headers["preference-applied"] == "respond-async"
    job: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    return job


def get_job(url: str, id: str) -> dict[str, Any]:
    answer = httpx.get(f"{url}/v1/jobs/{id}", timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = answer.json()
    return job


def wait_job(url: str, id: str, *statuses: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    wanted = statuses or ENDED
    job = wait_until(
        lambda: job if (job := get_job(url, id))["status"] in wanted else None, timeout_s, f"{id} {' or '.join(wanted)}"
    )
    assert job is not None
    return job
