"""By which names a call may run a function of the project."""

from __future__ import annotations

from collections.abc import Iterator

from hangup.lint.facts import FileFacts, FunctionFacts


def called_names(facts: FileFacts, function: FunctionFacts, ref: str) -> list[str]:
    """Return the names that a function must have, one of them, to be run by a call in `function`.

    `make()` stands for a function that `make` returns.
    """
    _, dot, last = ref.rpartition(".")
    if dot:
        return [last]
    return [_imported(facts, name) for name in (ref, *_aliases(facts, function, ref))]


def _imported(facts: FileFacts, name: str) -> str:
    """Return the name that something has where it is defined."""
    plain = name.removesuffix("()")
    return facts.imports.get(plain, plain).rpartition(".")[2] + name[len(plain) :]


def _aliases(facts: FileFacts, function: FunctionFacts, name: str) -> Iterator[str]:
    """Yield what a called name may stand for: `run = service.ask; run(text)`, a parameter's default, or one of a dictionary."""
    for ref in (name, *function.assigned.get(name, ()), function.parameters.get(name, "")):
        held = ref.removesuffix("[]").removesuffix(".get()")
        if held != ref:
            yield from function.assigned.get(held + "[]", ()) or facts.functions[0].assigned.get(held + "[]", ())
        elif ref != name and ref and ref[-1] != "]":
            yield ref
