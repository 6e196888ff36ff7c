"""Runs hangup in a terminal: a pty of a given size, and what a person would see on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Sequence
from typing import Any

from support.processes import HANGUP
from support.waiting import PATIENCE_S, wait_until

_CONTROL = re.compile(rb"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[=>]|\x1b\][^\x07]*\x07")


class Terminal:
    """A command at a terminal of `width` × `height`; it is ended when the `with` block ends."""

    def __init__(
        self,
        *arguments: str,
        width: int = 80,
        height: int = 24,
        env: dict[str, str] | None = None,
        command: Sequence[str] = HANGUP,
    ) -> None:
        self.width, self.height = width, height
        self.output = b""
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("HANGUP_") and k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
        }
        self.popen = subprocess.Popen(
            [*command, *arguments],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            env={**kept, "TERM": "xterm-256color", **(env or {})},
        )
        os.close(follower)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                if select.select([self._leader], [], [], 0.2)[0]:
                    data = os.read(self._leader, 65536)
                    if not data:
                        return
                    self.output += data
                elif self.popen.poll() is not None:
                    return
            except OSError:  # EIO: the command has ended
                return

    @property
    def text(self) -> str:
        """All that was written, without colours and other control sequences."""
        return _CONTROL.sub(b"", self.output).decode("utf-8", "replace").replace("\r", "")

    @property
    def screen(self) -> list[str]:
        """What is on the screen now, for commands that draw whole screens."""
        return drawn(self.output, self.width, self.height)

    def type(self, keys: str | bytes) -> None:
        os.write(self._leader, keys if isinstance(keys, bytes) else keys.encode())

    def wait_for(self, pattern: str, *, on_screen: bool = False) -> re.Match[str]:
        def look() -> re.Match[str] | None:
            return re.search(pattern, "\n".join(self.screen) if on_screen else self.text)

        try:
            found = wait_until(look, PATIENCE_S, f"{pattern!r} on the terminal")
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + ("\n".join(self.screen) if on_screen else self.text)) from None
        assert found is not None
        return found

    def resize(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.popen.send_signal(signal.SIGWINCH)

    def wait(self) -> int:
        code = self.popen.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.wait()
        os.close(self._leader)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def drawn(output: bytes, width: int, height: int) -> list[str]:
    """Play the output on a screen: text, line ends, and the few control sequences that hangup uses. A line that is too long
    stays long, so that a test can see it."""
    rows: list[list[str]] = [[] for _ in range(height)]
    row = column = 0
    for piece in re.split(r"(\x1b\[[?0-9;]*[A-Za-z]|\r|\n)", output.decode("utf-8", "replace")):
        if piece == "\n":
            row = min(row + 1, height - 1)
        elif piece == "\r":
            column = 0
        elif piece.startswith("\x1b["):
            row, column = _control(piece[2:-1], piece[-1], rows, row, column)
        else:
            line = rows[row]
            line.extend(" " * (column - len(line)))
            line[column : column + len(piece)] = piece
            column += len(piece)
    return ["".join(line).rstrip() for line in rows]


def _control(value: str, kind: str, rows: list[list[str]], row: int, column: int) -> tuple[int, int]:
    if kind == "H":
        at = [int(part or 1) for part in (value or "1;1").split(";")]
        return at[0] - 1, at[1] - 1
    if kind == "K":
        del rows[row][column:]
    elif kind == "J":
        del rows[row][column:]
        for line in rows[row + 1 :]:
            line.clear()
    elif kind == "F":
        return max(row - int(value or 1), 0), 0
    elif kind == "h" and value == "?1049":
        for line in rows:
            line.clear()
        return 0, 0
    return row, column
