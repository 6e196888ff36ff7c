"""Closes what a test has left open, on whichever path it ended.

An exception keeps the variables of the functions that it left, sockets among them, until the garbage collector finds them.
That complains in whatever test happens to run: a test that fails once would make an innocent one fail later.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import socket
import threading
import urllib.error
import warnings
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import httpx

from support.raw import Client

_OPENED: WeakSet[Any] = WeakSet()
_MADE = [Client, httpx.Client, urllib.error.HTTPError]  # an SDK's client is one of httpx; an error has its unread answer


def watch() -> None:
    """Note each client that is made from now on."""
    for kind in (*_MADE, socket.socket):
        _note_each(kind)


def _note_each(kind: Any) -> None:
    make = kind.__init__

    @functools.wraps(make)
    def make_and_note(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        if threading.current_thread() is threading.main_thread():  # a module's fixtures use theirs in threads, for many tests
            _OPENED.add(self)

    kind.__init__ = make_and_note


@contextlib.contextmanager
def closed_at_the_end() -> Iterator[None]:
    """Close what was opened within."""
    before = set(_OPENED)  # fixtures of whole modules
    yield
    if _close(set(_OPENED) - before):
        collect_quietly()


def _close(left: set[Any]) -> bool:
    """Close clients; return whether sockets are open that were made in another way. They may be in use; if not, the collector
    closes them.
    """
    for opened in left:
        if not isinstance(opened, socket.socket):
            with contextlib.suppress(OSError):
                (opened.sock if isinstance(opened, Client) else opened).close()
    return any(opened.fileno() != -1 for opened in left if isinstance(opened, socket.socket))


def collect_quietly() -> None:
    """Free what a failed test has left, so that no later one is told of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
