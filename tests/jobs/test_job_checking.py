"""Batches that cannot be checked and jobs that are refused end in time, and do not count as bugs of hangup."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hangup.config import LimitSettings
from hangup.core.jobs import JobStatus, Kind
from hangup.errors import Refusal
from hangup.gateway.jobs.input_lines import InputLines
from hangup.gateway.store.jobs import JobStore, NewItem
from hangup.tasks import TASKS
from support.job_registry import FakeGateway, open_registry

PATH = "/v1/chat/completions"
CALL = {"path": PATH, "model": "m", "stream": False, "headers": {}}
BATCH = {"endpoint": PATH, "input_file_id": "f", "completion_window": "24h", "headers": {}}
ITEM = [NewItem("c", PATH, b"{}")]


class TestChecking:
    def test_a_batch_that_cannot_be_checked_fails_and_is_not_checked_for_ever(
        self, store_path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def bug(*_: object) -> Any:
            raise ZeroDivisionError

        async def run() -> None:
            async with open_registry(JobStore(store_path), FakeGateway()) as registry:
                job = await registry.submit("batch_b", Kind.BATCH, "ann", BATCH, None, window_s=86_400)
                assert registry.check_lines is not None
                monkeypatch.setattr(InputLines, "finish", bug)
                await registry.check_lines(job)
                ended = await registry.store.do(lambda: registry.store.jobs.get(job.key))
                assert (ended.status, ended.about["problems"][0]["code"]) == (JobStatus.FAILED, "internal_error")

        asyncio.run(run())

    def test_a_quota_that_is_used_up_is_no_fault_of_ours(self, store_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        reported: list[str] = []
        monkeypatch.setattr(TASKS, "on_failure", lambda name, error: reported.append(name))

        async def run() -> None:
            host = FakeGateway(limits=LimitSettings(jobs_max=1))
            async with open_registry(JobStore(store_path), host) as registry:
                await registry.submit("job_a", Kind.CALL, "ann", CALL, ITEM, lease_s=60)
                with pytest.raises(Refusal):
                    await registry.submit("job_b", Kind.CALL, "ann", CALL, ITEM, lease_s=60)
            assert not reported and not host.faults

        asyncio.run(run())
