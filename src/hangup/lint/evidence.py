"""What speaks for a finding: whether it is certain, or only likely.

On code that the linter had not seen, two things told the right findings from the others, in each of four sets of projects:
that the generated text is passed on at every step from the model to the answer, and that a name says that text is generated
(that of the route, of the handler or of what is called). A third did in five of six: that a handler makes the call whatever
it is asked for. Where a finding is about one place of several that may be run, it is that no branch is on the whole way to it,
or the way is short. How the call was found (by a type or a name) said nothing.
"""

from __future__ import annotations

from hangup.lint.facts import CallFacts, FunctionFacts
from hangup.lint.names import Key
from hangup.lint.project import Project, Runs
from hangup.lint.purposes import is_old_copy, says_answer, says_generation

STEPS_MAX = 2  # with branches on the way


def says_so(project: Project, path: str, handler: FunctionFacts, reference: str) -> bool:
    """Return whether a name says that a handler in a file, or what is called for it, answers with generated text."""
    if is_old_copy(project.source.inside(path)):
        return False
    return says_answer(handler.path) or says_answer(handler.name) or says_generation(reference)


def is_run_certainly(project: Project, path: str, handler: FunctionFacts, reference: str, runs: Runs) -> bool:
    """Return whether a handler certainly makes a call, whatever it is asked for, and answers with what is generated."""
    return runs.passed and not runs.decided and says_so(project, path, handler, reference)


def is_reached_certainly(project: Project, key: Key, call: CallFacts, runs: Runs) -> bool:
    """Return whether a handler certainly comes to a call in this function, and answers with what it generates."""
    found = project.served.way_from_handler(key)
    if found is None:
        return False
    handler, way = found
    if (
        not runs.passed
        or any(step.lost for step in (call, *way))
        or not says_so(project, handler[0], project.function(handler), call.ref)
    ):
        return False
    branches = runs.branches + sum(step.branches for step in (call, *way))
    return branches == 0 or runs.steps + len(way) <= STEPS_MAX
