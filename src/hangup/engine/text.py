"""Turns tokens into text that is safe to send: whole characters, and nothing that could begin a stop string."""

from __future__ import annotations

from hangup.engine.tokenizer import TextDecoder


class Writer:
    """The text of one answer."""

    def __init__(self, decoder: TextDecoder, stops: tuple[str, ...]) -> None:
        self._decoder = decoder
        self._stops = stops
        self._held_back = ""
        self.stop = ""  # the stop string that was found

    def push(self, token: int) -> str:
        """Return the text that may be sent now; it ends before a stop string."""
        if not self._stops:
            return self._decoder.push(token)
        text = self._held_back + self._decoder.push(token)
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.stop = min(found)
            self._held_back = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held_back = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return the text that was held back for a stop string that never came."""
        held, self._held_back = self._held_back, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of the text are the beginning of `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
