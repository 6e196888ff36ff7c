"""What a test leaves open does not surface in another one."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import urllib.error
import warnings
from email.message import Message
from typing import IO, cast

import pytest

from support import leftovers
from support.linux import linux_only, proc
from support.processes import Process, descendants
from support.raw import Client
from support.waiting import wait_until


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


@linux_only
def test_a_process_is_closed_with_the_processes_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here one of them is stopped. If it lived on, nobody could read the output to its end, and the test would hang."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(300)'])"
    monkeypatch.setattr(Process, "program", [sys.executable, "-c", code])
    with Process() as process:
        (child,) = wait_until(lambda: descendants(process.popen.pid), what="its child")
        os.kill(child, signal.SIGSTOP)
    wait_until(lambda: not _running(child), what="its child to end")


def _running(pid: int) -> bool:
    try:
        return " Z " not in proc(pid, "stat").read_text()
    except OSError:
        return False
