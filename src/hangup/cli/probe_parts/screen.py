"""Shows the progress of a probe: one line per case, and on a terminal the one that is being played."""

from __future__ import annotations

import sys
from typing import Any

from hangup.cli.table import printable


class ProbeScreen:
    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty() and not quiet
        self._open = False

    def progress(self, text: str, case: Any, judgement: Any) -> None:
        from hangup.probe.report import outcome  # noqa: PLC0415

        if self._quiet:
            return
        self._clear()
        if case is None:
            print(f"hangup: {printable(text)}", file=sys.stderr, flush=True)
        elif judgement is not None:
            print(f"hangup: {case.name:<22} {printable(outcome(judgement))}", file=sys.stderr, flush=True)
        elif self._live:
            print(f"hangup: {case.name:<22} …", end="", file=sys.stderr, flush=True)
            self._open = True

    def finish(self) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._open:
            print("\r\x1b[2K", end="", file=sys.stderr)
            self._open = False
