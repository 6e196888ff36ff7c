"""Responses of requests: `content` is a property that downloads the whole answer, so the event loop must not read it.

requests is not installed here; the stand-in has its state machine, as far as the library touches it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import hangup
from hangup.library.faults import answer_of
from library.pretender import Pretender


class Response:
    """Like `requests.Response` with `stream=True`."""

    def __init__(self, status: int, *parts: bytes) -> None:
        self.status_code = status
        self.headers = {"Content-Type": "text/event-stream", "Retry-After": "7"}
        self.readers: set[str] = set()
        self.closed = False
        self._parts = parts
        self._content: Any = False
        self._content_consumed = False

    @property
    def content(self) -> bytes:
        if self._content is False:
            if self._content_consumed:
                raise RuntimeError("The content for this response was already consumed")
            self._content = b"".join(self)
        self._content_consumed = True
        return self._content  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            self.readers.add(threading.current_thread().name)
            yield part
        self._content_consumed = True

    def close(self) -> None:
        self.closed = True


class HTTPError(OSError):
    """Like the error of `raise_for_status`."""

    def __init__(self, response: Response) -> None:
        super().__init__("503 Server Error")
        self.response = response


@pytest.mark.parametrize("in_function", [False, True], ids=["response", "function"])
def test_a_response_is_read_part_by_part_in_its_thread(in_function: bool) -> None:
    response = Response(200, b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n")

    async def main() -> list[bytes]:
        client = Pretender()
        await client.stream((lambda _: response) if in_function else response)
        return client.sent

    assert asyncio.run(main()) == [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"]
    assert response._content is False and response.closed
    assert threading.current_thread().name not in response.readers


def test_an_error_is_read_in_its_thread() -> None:
    response = Response(429, b"slow ", b"down")

    async def main() -> tuple[hangup.Ended, Pretender]:
        client = Pretender()
        return await client.stream(response), client

    ended, client = asyncio.run(main())
    assert (ended.status, client.status, client.sent, client.headers["retry-after"]) == (429, 429, [b"slow down"], "7")
    assert threading.current_thread().name not in response.readers


def test_the_body_of_an_error_that_was_not_read_is_left_alone() -> None:
    response = Response(503, b"details")
    answer = answer_of(HTTPError(response))
    assert answer is not None and (answer.status, answer.headers) == (503, {"retry-after": "7"})
    assert not response.readers
    assert response.content == b"details"
    answer = answer_of(HTTPError(response))
    assert answer is not None and answer.body == b"details"
