"""What is not run because an import before it fails: `from services.llm import ask`, where the own `services` has no llm.

In a function, also where `services.llm` has no `ask`; if the module itself makes such an import, `broken` sees it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hangup.lint.facts import FileFacts

_LOOKED_AT = frozenset({ast.Import, ast.ImportFrom, ast.Try, ast.With, ast.AsyncWith})


class Import(NamedTuple):
    """An import that a function, or a module, makes whenever it comes there."""

    line: int
    last: int  # line of the block that it is in: if it raises, what is between the two is not run
    module: str
    name: str = ""  # in the module, if there is one to look for


def imports_in(body: list[ast.stmt], *, names: bool, last: int = 0) -> Iterator[Import]:
    """Yield the imports of modules in packages, outside of conditions and loops; with `names`, also those of names in them.

    `last` is the line up to which nothing is run if one raises, where that is more than the block.
    """
    last = last or ((body[-1].end_lineno or body[-1].lineno) if body else 0)
    for statement in body:
        if statement.__class__ not in _LOOKED_AT:
            continue
        match statement:
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module] if "." in module else [f"{module}.{alias.name}" for alias in statement.names]
                for alias in statement.names if names else ():
                    yield Import(statement.lineno, last, module, alias.name)
            case ast.Import():
                modules = [alias.name for alias in statement.names if "." in alias.name]
            case ast.Try() if statement.handlers and all(_leaves(handler.body) for handler in statement.handlers):
                yield from imports_in(statement.body, names=names, last=last)
                continue
            case ast.Try() | ast.With() | ast.AsyncWith():
                yield from imports_in(statement.body, names=names)
                continue
            case _:  # a relative import
                continue
        yield from (Import(statement.lineno, last, module) for module in modules)


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], (ast.Return, ast.Raise))


def drop_unreached(facts: FileFacts, fails: Callable[[str, str], bool]) -> None:
    """Take the calls that come after a failing import out of a file's facts; if the module makes it, all that follow.

    `fails` is given a module, and a name in it or "".
    """
    failing = {
        number: found
        for number, function in enumerate(facts.functions)
        if (found := [(line, last) for line, last, module, name in function.imported if fails(module, name)])
    }
    if not failing:
        return  # as nearly always
    for number, function in enumerate(facts.functions):
        cut: list[tuple[int, int]] = []
        here = number
        while here >= 0:
            cut += failing.get(here, ())
            here = facts.functions[here].outer
        function.calls = [c for c in function.calls if not _is_in(c.place[0], cut)]
        function.spawns = [s for s in function.spawns if not _is_in(s.place[0], cut)]


def _is_in(line: int, blocks: list[tuple[int, int]]) -> bool:
    return any(first < line <= last for first, last in blocks)
