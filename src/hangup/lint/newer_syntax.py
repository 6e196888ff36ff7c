"""What Python 3.12 added to the syntax, for the parser of an older Python, which would take a whole file for broken.

Since 3.12, what is in the braces of an f-string may have any quotes, backslashes, comments and line ends: such a string becomes
a plain one of the same length on the same lines, and what its braces hold is lost. Type parameters (`class Store[T]:`) are
blanked.
"""

from __future__ import annotations

import ast
import re

NEWER = (3, 12)  # the first Python that parses them
_DEPTH_MAX = 50  # of strings inside strings
_STRING_OR_COMMENT = re.compile(r"#[^\n]*|(?:(?<!\w)([rRbBuUfF]{1,2}))?(\"\"\"|'''|\"|')")
_IN_BRACES = re.compile(rf"{_STRING_OR_COMMENT.pattern}|[()\[\]{{}}:]|:=")
_QUOTES = ('"""', "'''", '"', "'")
_IN_STRING = {q: re.compile(rf"\\.|{q}" + ("" if len(q) == 3 else r"|\n"), re.DOTALL) for q in _QUOTES}
_IN_F_STRING = {
    q: re.compile(rf"\\N\{{[^}}]*\}}|\\[^{{}}]|\{{\{{|\{{|{q}" + ("" if len(q) == 3 else r"|\n"), re.DOTALL) for q in _QUOTES
}


_TYPE_PARAMETERS = re.compile(r"^([ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+\w+)(\[[^\n]*?\])(?=[ \t]*[(:])", re.M)


def as_older(source: str) -> str | None:
    """Return a source without what this Python cannot parse; None if that is nothing, or it is broken otherwise."""
    older = _without_f_strings(_TYPE_PARAMETERS.sub(lambda found: found[1] + " " * len(found[2]), source))
    return None if older == source else older


def _without_f_strings(source: str) -> str:
    """Return a source with plain strings in place of f-strings that this Python cannot parse."""
    parts: list[str] = []
    done = position = 0
    try:
        while (found := _STRING_OR_COMMENT.search(source, position)) is not None:
            position = _end(source, found, 0)
            if _is_f_string(found) and not _is_parsed(text := source[found.start() : position]):
                parts += [source[done : found.start()], _plain(text)]
                done = position
    except _BrokenError:
        return source
    return "".join([*parts, source[done:]])


class _BrokenError(Exception):
    """The source ends inside a string."""


def _is_f_string(found: re.Match[str]) -> bool:
    return "f" in (found[1] or "").lower()


def _end(source: str, found: re.Match[str], depth: int) -> int:
    """Return where the comment or the string ends that begins here."""
    quote = found[2]
    if quote is None:
        return found.end()
    if depth > _DEPTH_MAX:
        raise _BrokenError
    if _is_f_string(found):
        return _end_of_f_string(source, found.end(), quote, depth)
    position = found.end()
    while (part := _IN_STRING[quote].search(source, position)) is not None:
        position = part.end()
        if part[0] == quote:
            return position
        if part[0] == "\n":
            break
    raise _BrokenError


def _end_of_f_string(source: str, position: int, quote: str, depth: int) -> int:
    while (part := _IN_F_STRING[quote].search(source, position)) is not None:
        position = part.end()
        if part[0] == quote:
            return position
        if part[0] == "\n":
            break
        if part[0] == "{":
            position = _end_of_braces(source, position, depth)
    raise _BrokenError


def _end_of_braces(source: str, position: int, depth: int) -> int:
    """Return where the braces end whose content begins here: after an expression, and perhaps a format."""
    inside = 0  # parentheses, brackets and braces of the expression
    formats = False  # in the format after a colon, in which braces hold expressions again
    while (part := _IN_BRACES.search(source, position)) is not None:
        text, position = part[0], part.end()
        if text == "}" and not inside:
            return position
        if formats:
            position = _end_of_braces(source, position, depth + 1) if text == "{" else part.start() + 1
        elif part[2] is not None:
            position = _end(source, part, depth + 1)
        elif text in {"(", "[", "{"}:
            inside += 1
        elif text in {")", "]", "}"}:
            inside -= 1
        elif text == ":" and not inside:
            formats = True
    raise _BrokenError


def _is_parsed(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return False
    return True


def _plain(text: str) -> str:
    """Return a plain string of the same length on the same lines."""
    lines = [" " * len(line) for line in text.split("\n")]
    if len(lines) == 1:
        return f'"{lines[0][2:]}"'
    return "\n".join([f'"""{lines[0][3:]}', *lines[1:-1], f'{lines[-1][3:]}"""'])
