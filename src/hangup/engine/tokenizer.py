"""The tokenizer interface, and a byte-level BPE that is small enough to read.

The end of a speech, "\\n\\n", is one token by construction, and the model's end-of-sequence token: it stops an answer. If
the client sets `ignore_eos`, it is ordinary text, and the next speaker follows.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Protocol

_WORDS = re.compile(r"\n\n| ?[^\W\d_]+| ?\d+| ?[^\w\s]+|\s|_")
END_OF_SPEECH = "\n\n"
_WORD_CHARS_MAX = 32  # longer runs are split, so that no text can make merging slow


class TextDecoder(Protocol):
    """Turns the tokens of one answer into text as they arrive."""

    def push(self, token: int) -> str:
        """Return the text that `token` completes; empty while a character is still incomplete."""


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...

    def decoder(self) -> TextDecoder: ...

    def token_text(self, token: int) -> str:
        """Return the text of a single token, as shown beside its log probability."""

    def chat(self, messages: Iterable[tuple[str, str]]) -> str:
        """Return the prompt for a conversation of (role, content) pairs."""


class Bpe:
    """A byte-level BPE. Ids 0-255 are bytes, 256 is the end of a speech, the rest are merges in the order of training."""

    eos = 256

    def __init__(self, merges: list[tuple[int, int]]) -> None:
        self._bytes = [bytes([byte]) for byte in range(256)] + [END_OF_SPEECH.encode()]
        self._merged: dict[tuple[int, int], int] = {}
        for left, right in merges:
            self._merged[left, right] = len(self._bytes)
            self._bytes.append(self._bytes[left] + self._bytes[right])
        self._encode_word = lru_cache(maxsize=65536)(self._merge_word)

    @classmethod
    def load(cls, path: Path) -> Bpe:
        return cls([(left, right) for left, right in json.loads(path.read_bytes())["merges"]])

    @property
    def size(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        return [token for word in words(text) for token in self._encode_word(word)]

    def _merge_word(self, word: str) -> tuple[int, ...]:
        if word == END_OF_SPEECH:
            return (self.eos,)
        tokens = list(word.encode("utf-8", "replace"))
        while len(tokens) > 1:
            ranked = [(self._merged.get(pair, 1 << 30), at) for at, pair in enumerate(pairwise(tokens))]
            merged, at = min(ranked)
            if merged == 1 << 30:
                break
            tokens[at : at + 2] = [merged]
        return tuple(tokens)

    def decoder(self) -> TextDecoder:
        return _Utf8(self._bytes)

    def token_text(self, token: int) -> str:
        return self._bytes[token].decode("utf-8", "replace")

    def chat(self, messages: Iterable[tuple[str, str]]) -> str:
        """Return the conversation as a play: the user is the First Citizen; the assistant is Menenius, who likes to talk."""
        names = {"assistant": "MENENIUS", "system": "Chorus", "developer": "Chorus"}
        speeches = [f"{names.get(role, 'First Citizen')}:\n{content}\n\n" for role, content in messages]
        return "".join(speeches) + "MENENIUS:\n"


class _Utf8:
    def __init__(self, table: list[bytes]) -> None:
        self._table = table
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token: int) -> str:
        return self._decode(self._table[token])


def words(text: str) -> Iterable[str]:
    for word in _WORDS.findall(text):
        for start in range(0, len(word), _WORD_CHARS_MAX):
            yield word[start : start + _WORD_CHARS_MAX]
