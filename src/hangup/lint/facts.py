"""What the linter keeps of a file once its syntax tree is gone: functions, their calls, and what their names may stand for.

The rules judge the facts of all files together, so a handler in one module and the model in another are seen as one. Facts are
plain values: a process can send them to another, and the cache stores them as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

UNKNOWN = -1  # for `stream` and `blocking`, which are otherwise 0 or 1
Place = tuple[int, int, int, int]  # first line, column from 1, last line, last line on which an ignore comment counts


@dataclass(slots=True)
class CallFacts:
    """A call as it is written. References use local names: self.rag.query, get_rag().query, answers[].text."""

    ref: str
    place: Place
    use: str  # what becomes of the result: await, loop, argument, given (to an awaited call), return, drop or value
    into: str = ""  # the call that takes the result as an argument
    direct: str = ""  # the verb by which this call is inference by itself; "" if it is not
    stream: int = 0
    blocking: int = UNKNOWN
    forwards: bool = False  # sends a request to an address that is not known: inference in a handler for inference
    body: bool = False  # is given the body of a generation: who sends that anywhere runs inference
    gives_request: bool = False  # passes the handler's request on, so what is called may watch it
    uncapped: bool = False  # nothing limits its tokens, though something could
    brief: bool = False  # its limit is a few tokens
    needs: list[str] = field(
        default_factory=list
    )  # parameters, and attributes of them, that must be true for it to be made, or false (after `!`)
    switches: list[str] = field(default_factory=list)  # conditions around it that a setting decides, as `switches` writes them
    maybe: bool = False  # in a branch, or after an early return of something else
    branches: int = 0  # in how many branches, one inside another
    decided: bool = False  # one of them decides whether it is made, for a request that the handler accepts
    chosen: bool = False  # in one of many branches for values of a parameter
    last: bool = False  # in `finally`
    drained: bool = False  # what a handler's loop reads that sends nothing meanwhile
    instead: list[int] = field(default_factory=list)  # first and last line of what is run instead where a constant is true
    given: list[str] = field(
        default_factory=list
    )  # arguments: `0` for a false constant, a name, a setting after `?`, or `*`; `name=` before it
    unanswered: bool = False  # a handler's call whose result has no part in what the handler returns
    lost: bool = False  # its result leaves the function in no way that names show
    after: str = ""  # a name that is always evaluated before, and that the file does not define

    @property
    def is_known_to_block(self) -> bool:
        """Return whether ruff and flake8-async report this call in an async function, as ASYNC210."""
        return bool(self.direct) and self.ref.startswith("requests.")


@dataclass(slots=True)
class Spawn:
    """Work that is given to something else to run: a background task, a task, a thread or an executor."""

    kind: str  # background, task, thread, executor; called: by a function of the project that is given it
    target: str  # a reference, or `#3` for the function with that number in the file
    place: Place
    handle: str  # await, drop, value, result (of which it waits for), or the name that it is assigned to
    direct: str = ""  # the target is inference by itself
    stoppable: bool = False  # something in its arguments can stop it
    verb: str = ""  # as it is written
    read: bool = False  # a plain loop goes over the stream that it returns, if it returns one
    lost: bool = False  # as of a call
    decided: bool = False  # likewise
    after: str = ""  # likewise


@dataclass(slots=True)
class FunctionFacts:
    name: str
    class_name: str
    outer: int  # number of the enclosing function; -1 for the module
    place: Place
    is_async: bool = False
    yields: bool = False
    abstract: bool = False  # without a body of its own
    watches: bool = False  # looks for the client's disconnect
    cancels: bool = False  # cancels or stops something
    ends: bool = False  # does so in `finally`, or by catching the cancellation
    endless: bool = False  # `while True`
    sends_stream: bool = False  # makes a streaming response
    answers: bool = False  # returns something else than a streaming response
    handler: str = ""  # the framework that calls it for a request
    path: str = ""  # of its route
    receives: bool = False  # reads from a WebSocket
    stores: bool = False  # writes to a database
    route: str = ""  # the object whose decorator registered it
    parameters: dict[str, str] = field(default_factory=dict)  # name -> reference of its type
    choices: int = 0  # how many values of a parameter it tells apart, if these are many
    without: list[str] = field(default_factory=list)  # parameters that are None or False unless they are given
    flags: dict[str, bool] = field(default_factory=dict)  # parameters that are True or False unless they are given
    texts: dict[str, str] = field(default_factory=dict)  # parameters that are a word unless they are given
    required: list[str] = field(default_factory=list)  # parameters without a default
    decorated: bool = False  # by something that may change how it is called
    positional: int = UNKNOWN  # how many arguments it takes without their names; unknown if any number
    any_keyword: bool = True  # it takes keywords that are none of its parameters
    provided: dict[str, str] = field(default_factory=dict)  # parameter -> reference of what Depends() provides
    assigned: dict[str, list[str]] = field(default_factory=dict)  # name -> references of values
    returned: list[str] = field(default_factory=list)
    plain_loops: list[str] = field(default_factory=list)  # those of `loops` without `async`
    calls: list[CallFacts] = field(default_factory=list)
    spawns: list[Spawn] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)  # what its loops and comprehensions go over
    handled: list[str] = field(default_factory=list)  # task handles that are awaited, asked, cancelled, returned or passed on
    imported: list[tuple[int, int, str, str]] = field(default_factory=list)  # as `failing` writes imports

    def loops_over(self, call: CallFacts, *, plainly: bool = False) -> bool:
        """Return whether a loop goes over what a call returns, also by a name; `plainly`: without `async`."""
        if call.use == "loop" and not (plainly and call.into == "async for"):
            return True
        made = call.ref + "()"
        for ref in self.plain_loops if plainly else self.loops:
            name, _, part = ref.partition(".")
            if ref == made or (made in self.assigned.get(name.partition("(")[0], ()) and not part.startswith("headers")):
                return True
        return False

    def waits_for(self, spawn: Spawn) -> bool:
        """Return whether the function waits for what it gave away, and cancels it in no case."""
        if spawn.kind in {"task", "executor"} and spawn.handle in self.handled:
            return f"+{spawn.handle}" not in self.handled
        return spawn.kind in {"task", "executor", "passed", "method"} and spawn.handle in {"await", "result"}

    def blocks_for(self, spawn: Spawn) -> bool:
        """Return whether the thread that calls the function stands still meanwhile: `pool.submit(ask, text).result()`."""
        asked = spawn.handle == "result" or f"={spawn.handle}" in self.handled
        return spawn.kind == "executor" and asked and spawn.verb.endswith((".submit", ".map")) and self.waits_for(spawn)


@dataclass(slots=True)
class ClassFacts:
    name: str
    bases: list[str]
    place: Place
    attributes: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class Local:
    """A finding that needs no other file."""

    code: str
    place: Place
    message: str


@dataclass(slots=True)
class FileFacts:
    imports: dict[str, str] = field(default_factory=dict)
    functions: list[FunctionFacts] = field(default_factory=list)  # the first one is the module itself
    classes: list[ClassFacts] = field(default_factory=list)
    registered: list[tuple[str, str, int, str]] = field(
        default_factory=list
    )  # reference, framework, number of the function around, path
    middlewares: list[Local] = field(default_factory=list)  # HU010, if a handler polls
    polls: list[Place] = field(default_factory=list)
    local: list[Local] = field(default_factory=list)
    ignores: list[tuple[int, list[str], bool]] = field(default_factory=list)  # line, codes (none: all), for the whole file
    cancels_handlers: bool = False  # aiohttp's handler_cancellation=True
    states: list[tuple[str, str, int]] = field(default_factory=list)  # app.state.x: name, reference, number of the function
    made: list[tuple[str, int, list[str]]] = field(
        default_factory=list
    )  # what the module calls whenever it is imported, if it looks like a class: reference, arguments, keywords
    undefined: list[str] = field(default_factory=list)  # names that calls come after and that the file does not define
    ending: str = ""  # the one of them that ends its import
    passed_over: list[str] = field(default_factory=list)  # names of calls of which only what is written there was noted


def to_json(facts: FileFacts) -> list[Any]:
    """Return facts as lists, dicts and plain values, without their field names."""
    return [
        facts.imports,
        [_function_row(f) for f in facts.functions],
        [(c.name, c.bases, c.place, c.attributes) for c in facts.classes],
        facts.registered,
        [(m.code, m.place, m.message) for m in facts.middlewares],
        facts.polls,
        [(m.code, m.place, m.message) for m in facts.local],
        facts.ignores,
        facts.cancels_handlers,
        facts.states,
        facts.made,
        facts.undefined,
        facts.ending,
        facts.passed_over,
    ]


_CALL = attrgetter(*(f.name for f in fields(CallFacts)))
_SPAWN = attrgetter(*(f.name for f in fields(Spawn)))
_HEAD = attrgetter(
    *(f.name for f in fields(FunctionFacts) if f.name not in {"calls", "spawns", "loops", "handled", "imported"})
)


def _function_row(f: FunctionFacts) -> list[Any]:
    return [*_HEAD(f), [_CALL(c) for c in f.calls], [_SPAWN(s) for s in f.spawns], f.loops, f.handled, f.imported]


def from_json(row: list[Any]) -> FileFacts:
    imports, functions, classes, registered, middlewares, polls, local, ignores, cancels, states, made, *rest = row
    return FileFacts(
        imports,
        [_function(f) for f in functions],
        [ClassFacts(c[0], c[1], _place(c[2]), c[3]) for c in classes],
        [(r[0], r[1], r[2], r[3]) for r in registered],
        [_local(m) for m in middlewares],
        [_place(p) for p in polls],
        [_local(m) for m in local],
        [(i[0], i[1], i[2]) for i in ignores],
        cancels,
        [(s[0], s[1], s[2]) for s in states],
        [(m[0], m[1], m[2]) for m in made],
        *rest,
    )


def _place(row: list[int]) -> Place:
    return row[0], row[1], row[2], row[3]


def _local(row: list[Any]) -> Local:
    return Local(row[0], _place(row[1]), row[2])


def _function(row: list[Any]) -> FunctionFacts:
    *head, calls, spawns, loops, handled, imported = row
    head[3] = _place(head[3])
    made = [CallFacts(c[0], _place(c[1]), *c[2:]) for c in calls]
    spawned = [Spawn(s[0], s[1], _place(s[2]), *s[3:]) for s in spawns]
    written = [(i[0], i[1], i[2], i[3]) for i in imported]
    return FunctionFacts(*(*head, made, spawned, loops, handled, written))
