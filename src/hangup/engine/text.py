"""From tokens to text as it may be shown: whole characters, and nothing that could be the beginning of a stop string."""

from __future__ import annotations

from hangup.engine.tokenizer import TextDecoder


class Writer:
    """The text of one answer."""

    def __init__(self, decoder: TextDecoder, stops: tuple[str, ...]) -> None:
        self._decoder = decoder
        self._stops = stops
        self._held = ""
        self.stop = ""  # the stop string that was found

    def push(self, token: int) -> str:
        """The text that may be shown now; after a stop string, nothing more."""
        if not self._stops:
            return self._decoder.push(token)
        text = self._held + self._decoder.push(token)
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.stop = min(found)
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """What was held back for a stop string that never came."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How much of the text's end is the beginning of `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
