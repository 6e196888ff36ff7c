"""What is known of a function that runs inference."""

from __future__ import annotations

from dataclasses import dataclass

from hangup.lint.guards import ALWAYS, Needs


@dataclass(frozen=True, slots=True)
class Runs:
    """That a function runs inference, and where: `source` is the call at the end of the chain, in the file `path`."""

    source: str
    path: str
    line: int
    streams: bool = False  # a generator, or something that returns one: calling it computes nothing yet
    blocks: bool = False  # it blocks the thread that calls it
    blocked: bool = False  # somewhere below, a coroutine is blocked: HU005's business
    may_stream: bool = False  # the caller decides
    forwards: bool = False  # only known to send a request somewhere
    own_loop: bool = False  # by asyncio.run, which works only in a thread without a loop
    kept: bool = False  # somebody stores what is generated, and returns a status, an id or a number
    labels: bool = False  # only to classify something
    needs: Needs = ALWAYS  # parameters that must be given, or it runs none
    sure: bool = True  # nothing but this call can be meant: no other class has the method, and no branch decides
    returned: bool = False  # it returns what the call returns: an answer for which it waited, or a coroutine
    passed: bool = True  # each function on the way passes on what is generated
    steps: int = 0  # how many functions are on the way
    branches: int = 0  # how many branches
    decided: bool = False  # a branch of the handler decides whether it is run
    stored: bool = False  # a function on the way writes to a database

    @property
    def rank(self) -> int:
        """Return how much is known: a computation outweighs the return of a stream, and inference a mere request."""
        return (
            (0 if self.forwards else 16)
            + (0 if self.streams else 8)
            + (0 if self.blocked else 4)
            + (0 if self.kept or self.labels else 2)
            + (0 if self.needs else 1)
        )
