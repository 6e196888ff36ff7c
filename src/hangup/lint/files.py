"""The files of a project that matter, each read when something first asks for it."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property

from hangup.lint.cache import FileEntry
from hangup.lint.facts import FileFacts
from hangup.lint.hints import is_code
from hangup.lint.reach import ImportedFiles

_CLASS = re.compile(rb"^class (\w+)", re.M)
Reader = Callable[[str], FileFacts | None]


class SourceFiles:
    """Those that were read, and others of which only the text is known.

    A function can only be called from a file that names it. So, to follow a call backwards, the linter reads the files that
    name the function, and to follow a name forwards, those that are imported; it parses nothing else.
    """

    def __init__(
        self,
        read: Mapping[str, FileFacts],
        unread: Mapping[str, FileEntry] | None = None,
        reader: Reader = lambda _: None,
        text: Callable[[str], bytes] = lambda _: b"",
        below: Collection[str] = (),
        harmless: Mapping[str, FileEntry] | None = None,
        reach: ImportedFiles | None = None,
    ) -> None:
        """`reader` returns None if a file cannot be parsed; `below` are the files below a handler whose path is one of
        inference, `harmless` those that lead to none; `reach` knows which of them an application imports.
        """
        self.read = dict(read)
        self._unread = dict(unread or {})
        self._reader = reader
        self._text = text
        self._below = below
        self.harmless = harmless or {}
        self.reach = reach or ImportedFiles({}, text)
        self._decoded: dict[str, str] = {}
        self._by_word: dict[str, list[str]] | None = None
        self.on_read: Callable[[str, FileFacts], None] = _ignore

    def paths(self) -> Iterator[str]:
        yield from sorted({*self.read, *self._unread})

    def inside(self, path: str) -> str:
        """Return a path without the folder that all files are in: where a project lies says nothing about its files."""
        return path[len(self._folder) :].lstrip("/") if path.startswith(self._folder) else path

    @cached_property
    def _folder(self) -> str:
        try:
            return os.path.commonpath([path.rpartition("/")[0] for path in (*self.read, *self._unread, *self.harmless)])
        except ValueError:  # on several drives, or absolute and relative ones
            return ""

    def has(self, path: str) -> bool:
        """Read a file, if it was not read before; return whether it could be parsed."""
        if path in self.read:
            return True
        if self._unread.pop(path, None) is None:
            return False
        facts = self._reader(path)
        if facts is not None:
            self.read[path] = facts
            self.on_read(path, facts)
        return facts is not None

    def read_users(
        self, name: str, *, method: bool, below: bool = False, beside: Collection[str] = (), like: Collection[str] = ()
    ) -> None:
        """Read the files that may call a function or a method.

        With `below`, only those below a handler for inference; with `beside`, only those that have one of these words as well;
        with `like`, only those with a word that contains one of these, in either case.
        """
        if name.startswith("__"):
            return  # nobody calls it by its name
        attribute = b"." + name.encode()
        for path in self._naming(name):
            if (below and path not in self._below) or (beside and not any(self._has_word(path, word) for word in beside)):
                continue
            if like and not any(part in self._unread[path].words.lower() for part in like):
                continue
            imported = not method and any(name == wanted for _, wanted in self._unread[path].imports)
            if imported or is_code(text := self._text(path), attribute) or (not method and b"import *" in text):
                self.has(path)

    def read_definers(self, name: str) -> None:
        """Read the files that define a function or a method with this name."""
        definition = b"def " + name.encode()
        for path in self._naming(name):
            if is_code(self._text(path), definition):
                self.has(path)

    def harmless_definers(self, name: str, words: Collection[str]) -> int:
        """Return how many files that lead to no inference define this, in a class with one of these words."""
        method, word = b"def " + name.encode() + b"(", f" {as_word(name)} "
        found = 0
        for path, entry in self.harmless.items():
            if word in f" {entry.words} " and method in (text := self._text(path)):
                found += any(part in c.lower() for c in _CLASS.findall(text) for part in map(str.encode, words))
        return found

    def naming(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the files that have a word, with their texts: those that lead to no inference as well."""
        word, others = name.encode(), {**self._unread, **self.harmless}
        for path in (*self.read, *(p for p, entry in others.items() if f" {as_word(name)} " in f" {entry.words} ")):
            if word in self._text(path):
                yield path, self.text(path)

    def naming_beside(self, name: str, words: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the files that have a word and one of others, with their texts."""
        word, others = name.encode(), [other.encode() for other in words]
        unread = [
            path
            for entries in (self._unread, self.harmless)
            for path, entry in entries.items()
            if as_word(name) in entry.words and any(as_word(other) in entry.words for other in words)
        ]
        for path in (*self.read, *unread):
            data = self._text(path)
            if word in data and any(other in data for other in others):
                yield path, self.text(path)

    def text(self, path: str) -> str:
        if path not in self._decoded:
            self._decoded[path] = self._text(path).decode("utf-8", "replace")
        return self._decoded[path]

    def _has_word(self, path: str, word: str) -> bool:
        return f" {word} " in f" {self._unread[path].words} "

    def _naming(self, name: str) -> list[str]:
        """Return the unread files that have this word."""
        if not self._unread:
            return []
        if self._by_word is None:
            self._by_word = defaultdict(list)
            for path, entry in self._unread.items():
                for word in entry.words.split(" "):
                    self._by_word[word].append(path)
        return [path for path in self._by_word.get(as_word(name), ()) if path in self._unread]

    def close(self) -> None:
        """Read no more, and let go of who listens, so that all of it is freed without the cycle collector."""
        self._unread.clear()
        self.on_read = _ignore


def _ignore(_path: str, _facts: FileFacts) -> None:
    pass


def as_words(words: frozenset[bytes]) -> str:
    """Return words as one text, in which each byte is a character."""
    return b" ".join(words).decode("latin-1")


def as_word(name: str) -> str:
    return name.encode().decode("latin-1")
