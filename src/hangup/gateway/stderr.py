"""Writes to stderr whatever became of it: its terminal may be closed, and the reader of its pipe dead or asleep."""

from __future__ import annotations

import contextlib
import os
import select
import sys


def write_stderr(text: str) -> None:
    """Write some lines. What nobody can read now is lost: it must neither fail the caller nor stop the event loop.

    Without Python's buffer, which would keep what cannot be written, and fail again when the process ends.
    """
    data = f"{text}\n".encode(errors="backslashreplace")
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there is no stderr if the process started without
        descriptor = sys.stderr.fileno()
        room = select.poll()
        room.register(descriptor, select.POLLOUT)
        while data and room.poll(0):
            data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]  # so many bytes do not block a pipe with room
