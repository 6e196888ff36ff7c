"""The files of a project that matter, each read when something first asks for it."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

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
        entries: Mapping[str, FileEntry] | None = None,
        unread: Iterable[str] = (),
        reader: Reader = lambda _: None,
        text: Callable[[str], bytes] = lambda _: b"",
        below: Collection[str] = (),
        harmless: Iterable[str] = (),
        reach: ImportedFiles | None = None,
        read_ahead: Callable[[list[str]], None] | None = None,
    ) -> None:
        """`entries` are those of all files; `reader` returns None if a file cannot be parsed; `below` are the files below a
        handler whose path is one of inference, `harmless` those that lead to none; `reach` knows which of them an application
        imports; `read_ahead` is given files that the reader will be asked for, to parse them together, if that is faster.
        """
        self.read = dict(read)
        self._entries = entries or {}
        self._unread = set(unread)
        self._reader = reader
        self._text = text
        self._read_ahead = read_ahead
        self._below = below
        self.harmless = frozenset(harmless)
        self.reach = reach or ImportedFiles({}, text)
        self._decoded: dict[str, str] = {}
        self._by_word: dict[str, list[str]] | None = None
        self._by_function: dict[str, list[str]] | None = None
        self._definers: dict[str, list[str]] = {}
        self._asked: set[tuple[Hashable, ...]] = set()  # what was asked for, so that all files that answer were read
        self.on_read: Callable[[str, FileFacts], None] = _ignore

    def paths(self) -> Iterator[str]:
        yield from sorted({*self.read, *self._unread})

    def all_paths(self) -> Iterator[str]:
        """Yield all files, those that lead to no inference as well."""
        yield from sorted({*self.read, *self._unread, *self.harmless})

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
        if path not in self._unread:
            return False
        self._unread.remove(path)
        facts = self._reader(path)
        if facts is not None:
            self.read[path] = facts
            self.on_read(path, facts)
        return facts is not None

    def is_no_python(self, path: str) -> bool:
        """Return whether a file was to be read and could not be parsed."""
        entry = self._entries.get(path)
        return entry is not None and entry.error is not None

    def read_users(
        self, name: str, *, method: bool, below: bool = False, beside: Collection[str] = (), like: Collection[str] = ()
    ) -> None:
        """Read the files that may call a function or a method, as `_users` finds them."""
        if self._note_question(name, method, below, frozenset(beside), frozenset(like)):
            for path in self._users(name, method=method, below=below, beside=beside, like=like):
                self.has(path)

    def look_ahead(self, asked: Iterable[Mapping[str, Any]]) -> None:
        """Parse the files together that `read_users` will read, as it will be asked."""
        if self._read_ahead is not None:
            self._read_ahead(sorted({path for question in asked for path in self._users(**question)}))

    def _users(
        self, name: str, *, method: bool, below: bool = False, beside: Collection[str] = (), like: Collection[str] = ()
    ) -> Iterator[str]:
        """Yield the unread files that may call a function or a method.

        With `below`, only those below a handler for inference; with `beside`, only those that have one of these words as well;
        with `like`, only those with a word that contains one of these, in either case.
        """
        if not name or name.startswith("__"):
            return  # nobody calls it by its name
        attribute = b"." + name.encode()
        for path in self._naming(name):
            if (below and path not in self._below) or (beside and not any(self._has_word(path, word) for word in beside)):
                continue
            if like and not any(part in self._entries[path].words.lower() for part in like):
                continue
            imported = not method and any(name == wanted for _, wanted in self._entries[path].imports)
            if imported or is_code(text := self._text(path), attribute) or (not method and b"import *" in text):
                yield path

    def read_definers(self, name: str) -> None:
        """Read the files that define a function or a method with this name."""
        if not self._note_question(name):
            return
        definition = b"def " + name.encode()
        for path in [path for path in self._with_function(name) if path in self._unread]:
            if is_code(self._text(path), definition):
                self.has(path)

    def harmless_definers(self, name: str, words: Collection[str]) -> int:
        """Return how many files that lead to no inference define this, in a class with one of these words."""
        return sum(path in self.harmless and _has_class(self._text(path), words) for path in self._defining(name))

    def naming(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the files that have a word, with their texts: those that lead to no inference as well."""
        for path in self._having(name):
            yield path, self.text(path)

    def naming_beside(self, name: str, words: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the files that have a word and one of others, with their texts."""
        others = {path for word in words for path in self._having(word)}
        for path in self._having(name):
            if path in others:
                yield path, self.text(path)

    def defining(self, name: str) -> dict[str, str]:
        """Return the files that define a function or a method with this name, with their texts."""
        return {path: self.text(path) for path in self._defining(name)}

    def _defining(self, name: str) -> list[str]:
        if name not in self._definers:
            definition = b"def " + name.encode() + b"("
            self._definers[name] = [path for path in self._with_function(name) if definition in self._text(path)]
        return self._definers[name]

    def text(self, path: str) -> str:
        if path not in self._decoded:
            self._decoded[path] = self._text(path).decode("utf-8", "replace")
        return self._decoded[path]

    def _has_word(self, path: str, word: str) -> bool:
        return f" {word} " in f" {self._entries[path].words} "

    def _naming(self, name: str) -> list[str]:
        """Return the unread files that have this word."""
        return [path for path in self._having(name) if path in self._unread] if self._unread else []

    def _with_function(self, name: str) -> list[str]:
        """Return the files that may define a function or a method with this name."""
        if not self._entries or not name.isidentifier():
            return self._having(name)
        if self._by_function is None:
            self._by_function = _index((path, self._entries[path].defines) for path in sorted(self._entries))
        return self._by_function.get(name, [])

    def _note_question(self, *question: Hashable) -> bool:
        """Note what is asked for; return whether it is the first time."""
        if question in self._asked:
            return False
        self._asked.add(question)
        return True

    def _having(self, name: str) -> list[str]:
        """Return the files that have this word; without an entry, or if it is no word, those with this text."""
        if not self._entries or not name.isidentifier():
            text = name.encode()
            return [path for path in (self._entries or self.read) if text in self._text(path)]
        if self._by_word is None:
            self._by_word = _index((path, self._entries[path].words) for path in sorted(self._entries))
        return self._by_word.get(as_word(name), [])

    def close(self) -> None:
        """Read no more, and let go of who listens, so that all of it is freed without the cycle collector."""
        self._unread.clear()
        self.on_read = _ignore


def _ignore(_path: str, _facts: FileFacts) -> None:
    pass


def _index(files: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return which files have each of their words."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, words in files:
        for word in words.split(" "):
            found[word].append(path)
    return found


def _has_class(text: bytes, words: Collection[str]) -> bool:
    """Return whether a file has a class whose name has one of these words in it."""
    return any(word.encode() in name.lower() for name in _CLASS.findall(text) for word in words)


def as_words(words: frozenset[bytes]) -> str:
    """Return words as one text, in which each byte is a character."""
    return b" ".join(words).decode("latin-1")


def as_word(name: str) -> str:
    return name.encode().decode("latin-1")
