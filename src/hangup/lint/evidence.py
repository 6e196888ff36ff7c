"""What speaks for a finding: whether it is certain, or only likely.

On code that the linter had not seen, these told the right findings from the others: that no name says that the client is after
something else (that of the route, of the handler or of what is called), that no setting names something that stands in for the
model, and that a name says that the client asks something. Without such a name: that the generated text is passed on at every
step from the model to the answer, that nothing on the way stores it, that a handler makes the call whatever it is asked for,
and that the way to the model is short and has few branches: fewer still where a finding is about one place of several that may
be run. How the call was found (by a type or a name) said nothing.
"""

from __future__ import annotations

from hangup.lint.facts import CallFacts, FunctionFacts
from hangup.lint.names import Key
from hangup.lint.project import Project
from hangup.lint.purposes import (
    converses,
    has_no_client,
    has_other_end,
    has_something_done,
    is_old_copy,
    is_written_to,
    says_answer,
    says_generation,
    takes_in,
    wants_text,
)
from hangup.lint.runs import Runs

STEPS_MAX = 5  # from a handler to the model, if a name says that a client wants a text, or if the place is one that blocks
STEPS_UNNAMED_MAX = 4  # if none does
BRANCHES_MAX = 3  # on the way
STEPS_TO_LOST_MAX = 3  # the same for a place that blocks, if what it generates is stored or seems to be lost,
STEPS_WITH_BRANCH_MAX = 2  # with a branch on the way,
STEPS_WITH_BRANCHES_MAX = 1  # or with several


def is_for_answer(project: Project, path: str, handler: FunctionFacts, reference: str) -> bool:
    """Return whether no name says that a handler in a file, or what is called for it, is for something else than an answer.

    What takes something in needs a name that says that it answers: `/query/upload`, `summarize_batch`.
    """
    names = (handler.path, handler.name, reference.rpartition(".")[2])
    if is_old_copy(project.source.inside(path)) or any(has_other_end(name) for name in names):
        return False
    if project.chosen.may_stand_in(path):
        return False
    return _says_so(handler, reference) or not any(takes_in(name) for name in names)


def _says_so(handler: FunctionFacts, reference: str) -> bool:
    """Return whether a name says that a handler, or what is called for it, answers with generated text."""
    return says_answer(handler.path) or says_answer(handler.name) or says_generation(reference)


def is_run_certainly(project: Project, path: str, handler: FunctionFacts, reference: str, runs: Runs) -> bool:
    """Return whether a handler certainly makes a call, whatever it is asked for, and its client waits for what is generated."""
    if not is_for_answer(project, path, handler, reference):
        return False
    names = (handler.name, handler.path)
    if converses(*names):
        return True
    stored = runs.stored or handler.stores
    if not is_written_to(*names) and (stored or (has_something_done(*names) and not wants_text(*names))):
        return False  # what is made and stored may be wanted even if nobody waits for it
    if not runs.passed or runs.branches > BRANCHES_MAX:
        return False
    if wants_text(*names) and not has_something_done(*names):
        return runs.steps <= STEPS_MAX
    return runs.steps <= STEPS_UNNAMED_MAX and not runs.decided


def is_reached_certainly(project: Project, key: Key, call: CallFacts, runs: Runs) -> bool:
    """Return whether a handler certainly comes to a call in this function, and answers with what it generates.

    Where the text seems to be lost on the way, a name has to say that it is the answer.
    """
    found = project.served.way_from_handler(key)
    if found is None:
        return False
    path, way = found[0][0], found[1]
    handler = project.function(found[0])
    names = (handler.name, handler.path)
    passed = runs.passed and not any(step.lost for step in (call, *way))
    if runs.labels or (any(map(has_no_client, names)) and not (passed and converses(*names))):
        return False  # `/webhook/chat` may answer who calls it
    if not is_for_answer(project, path, handler, call.ref) or not (passed or _says_so(handler, call.ref)):
        return False
    steps = runs.steps + len(way)
    branches = runs.branches + sum(step.branches for step in (call, *way))
    if passed and not runs.stored and not handler.stores:
        return steps <= STEPS_MAX and branches <= BRANCHES_MAX
    return steps <= (STEPS_TO_LOST_MAX, STEPS_WITH_BRANCH_MAX, STEPS_WITH_BRANCHES_MAX)[min(branches, 2)]
