"""What a test leaves open does not surface in another one."""

from __future__ import annotations

import gc
import socket
import urllib.error
import warnings
from email.message import Message
from typing import IO, cast

import pytest

from support import leftovers
from support.raw import Client


def test_sockets_in_the_variables_of_a_failed_test_are_closed() -> None:
    """The exception keeps its traceback, which keeps the variables, among them the exception."""

    def fails() -> None:
        client, other = Client(listener.getsockname()), socket.create_connection(listener.getsockname())
        unread = urllib.error.HTTPError("http://x", 503, "no", Message(), cast(IO[bytes], other.makefile("rb")))
        other.close()  # in truth only with the answer that was never read
        with pytest.raises(urllib.error.HTTPError) as caught:
            raise unread
        raise AssertionError(client, caught)

    with socket.create_server(("127.0.0.1", 0)) as listener, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with leftovers.closed_at_the_end(), pytest.raises(AssertionError):
            fails()
        gc.collect()
        assert [str(warning.message) for warning in told if warning.category is ResourceWarning] == []


def test_sockets_in_a_cycle_are_collected_in_the_test_that_left_them() -> None:
    def passes() -> None:
        left: list[object] = [socket.create_connection(listener.getsockname())]
        left.append(left)

    with socket.create_server(("127.0.0.1", 0)) as listener, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.disable()
        try:
            with leftovers.closed_at_the_end():
                passes()
            gc.collect()
        finally:
            gc.enable()
        assert [str(warning.message) for warning in told if warning.category is ResourceWarning] == []


def test_what_a_failed_test_left_is_collected_without_a_word() -> None:
    def fails() -> None:
        left = socket.socket()
        with pytest.raises(AssertionError) as caught:
            raise AssertionError
        raise AssertionError(left, caught)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(AssertionError):
            fails()
        leftovers.collect_quietly()
        gc.collect()
        assert told == []
