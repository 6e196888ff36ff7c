"""`hangup.sources` for LangChain and MCP with stand-ins; `tests/frameworks/test_sources.py` runs the real ones."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import hangup.sources
from library.pretender import Pretender

Part = tuple[str, int | None]  # a text, and the tokens that its message reports


class Runnable:
    """Like LangChain's models."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts

    async def astream(self, input: Any, config: Any) -> AsyncIterator[Any]:
        for text, tokens in self.parts:
            usage = None if tokens is None else {"input_tokens": 9, "output_tokens": tokens}
            yield SimpleNamespace(content=text, usage_metadata=usage, response_metadata={})


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([("one ", None), ("two ", None), ("three", None), ("", 7)], 7),
        ([("one ", None), ("two ", None), ("three", 2)], 2),
        ([("one ", 2), ("two ", 3), ("three", 2)], 7),
        ([("", 1), ("one ", None), ("two three", None), ("", 6)], 7),
        ([("one ", None), ("two three", None)], 3),
    ],
    ids=["in a last message", "with the last text", "with each text", "first and last", "not at all"],
)
def test_tokens_of_langchain_are_counted_once(parts: list[Part], tokens: int) -> None:
    async def main() -> int:
        return (await Pretender().stream(hangup.sources.langchain(Runnable(parts), "hello"))).tokens_out

    assert asyncio.run(main()) == tokens


class Session:
    """Like MCP's `ClientSession`; its connection fails, or hangs, when a notification is sent."""

    _request_id = 4

    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure
        self.called = asyncio.Event()

    async def call_tool(self, name: str, arguments: Any) -> None:
        self.called.set()
        await asyncio.Event().wait()

    async def send_notification(self, notification: Any) -> None:
        if self.failure is not None:
            raise self.failure
        await asyncio.Event().wait()


@pytest.mark.parametrize("failure", [RuntimeError("the session is closed"), None], ids=["closed", "hangs"])
def test_a_cancelled_tool_stays_cancelled_if_its_server_cannot_be_told(
    failure: Exception | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module: Any = ModuleType("mcp")
    names = ("CancelledNotificationParams", "CancelledNotification", "ClientNotification")
    module.types = SimpleNamespace(**{name: lambda *_, **__: None for name in names})
    monkeypatch.setitem(sys.modules, "mcp", module)
    monkeypatch.setattr("hangup.library.engines.chains._CANCEL_S", 0.05)

    async def main() -> bool:
        session = Session(failure)
        call = asyncio.create_task(hangup.sources.mcp_tool(session, "search"))
        await asyncio.wait_for(session.called.wait(), 60)
        call.cancel()
        await asyncio.wait({call}, timeout=60)
        return call.cancelled()

    assert asyncio.run(main())
    assert "tool search" in caplog.text
