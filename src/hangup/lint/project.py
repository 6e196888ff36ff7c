"""The files of a project together: which functions run inference, and which of them a client's request reaches."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import replace

from hangup.lint.called import called_names
from hangup.lint.chosen import Chosen
from hangup.lint.defaults import Defaults
from hangup.lint.facts import UNKNOWN, CallFacts, FileFacts, FunctionFacts, Spawn
from hangup.lint.failing import drop_unreached
from hangup.lint.files import SourceFiles
from hangup.lint.following import question, sends_others
from hangup.lint.graphs import Graphs
from hangup.lint.guards import ALWAYS, either, needed
from hangup.lint.names import Key, Names
from hangup.lint.purposes import is_no_answer, only_labels
from hangup.lint.registered import RegisteredHandlers
from hangup.lint.runs import Runs
from hangup.lint.served import OWN_LOOP, SPAWNING, Served
from hangup.lint.undeclared import Undeclared
from hangup.lint.unmade import Unmade
from hangup.lint.vocabulary import MADE_VERBS, is_made_call

COLLECTING = frozenset({"list", "join", "tuple", "sum", "set", "sorted", "dict", "gather", "next", "anext", "enumerate", "zip"})
_NO_STREAM = re.compile(r"non_?stream", re.I)  # a function with such a name reads what is streamed to it


class Project:
    def __init__(self, source: SourceFiles) -> None:
        self.source = source
        self.files = source.read
        self.names = Names(source)
        self.defaults = Defaults(source.naming, source.defining, source.inside)
        self.served = Served(self)
        self._registered = RegisteredHandlers(self)
        self._unmade = Unmade(self.names)
        self._undeclared = Undeclared(self.names, source.text, source.naming)
        self.runs: dict[Key, Runs] = {}
        self.graphs = Graphs(self.names, self.runs)
        self.by_call: dict[tuple[str, int, int], Runs] = {}  # path, function, index of the call -> what it runs
        self.by_spawn: dict[tuple[str, int, int], Runs] = {}
        self.collected: set[tuple[str, int, int]] = set()  # calls of streams that their function reads to the end
        self._callers: dict[str, list[tuple[Key, int]]] = defaultdict(list)
        self.chosen = Chosen(self.names, self.defaults, self.callers)
        self._spawners: dict[str, list[tuple[Key, int]]] = defaultdict(list)
        self._chosen: dict[Key, set[int]] = defaultdict(set)  # calls in branches of functions that tell many values apart
        self._unmarked: deque[str] = deque()
        self._graphs: list[
            tuple[Key, int, bool]
        ] = []  # calls, and spawns (True), of graphs that run no model as far as is known
        source.on_read = self._add
        for path, facts in list(self.files.items()):
            self._add(path, facts)
        self._spread()

    def function(self, key: Key) -> FunctionFacts:
        return self.files[key[0]].functions[key[1]]

    def functions(self) -> Iterator[tuple[Key, FunctionFacts]]:
        for path, facts in sorted(self.files.items()):
            for number, function in enumerate(facts.functions):
                yield (path, number), function

    def _add(self, path: str, facts: FileFacts) -> None:
        """Take in a file that was read."""
        self.names.add(path, facts)
        drop_unreached(facts, lambda module, name: self.names.fails(module, path, name))
        self._unmade.drop_unreached(path, facts)
        for number, function in enumerate(facts.functions):
            for index, call in enumerate(function.calls):
                for name in called_names(facts, function, call.ref):
                    self._callers[name].append(((path, number), index))
            for index, spawn in enumerate(function.spawns):
                self._spawners[_last(facts.imports.get(spawn.target, spawn.target))].append(((path, number), index))
        self._registered.add(path, facts)
        self._unmarked.append(path)

    def release(self) -> None:
        """Let go of all, so that what refers to each other in a circle is freed without the cycle collector."""
        vars(self.names).clear()
        vars(self).clear()

    def read_users(self, function: FunctionFacts, *, below: bool = False, beside: Collection[str] = ()) -> None:
        """Read the files that may call a function: none but its own if it is inside another one."""
        if function.outer <= 0 or function.class_name:
            self.source.read_users(**question(function, below=below), beside=beside)

    def callers(self, name: str) -> list[tuple[Key, int]]:
        """Return the calls of something with this name."""
        return sorted(self._callers.get(name, ()))

    def spawners(self, name: str) -> list[tuple[Key, int]]:
        return sorted(self._spawners.get(name, ()))

    # Handlers

    def handler(self, key: Key) -> str:
        """Return the framework that calls this function for a request; "" if none does."""
        return self._registered.handler(key)

    def handlers(self) -> Iterator[tuple[Key, str]]:
        """Yield the handlers that run inference or have a route that says so, each with its framework."""
        running = {(path, number) for path, number, _ in (*self.by_call, *self.by_spawn)}
        for key, function in list(self.functions()):
            if (key in running or function.path) and (kind := self.handler(key)):
                yield key, kind

    # Inference

    def _spread(self) -> None:
        """Mark the functions that make direct calls, then those that call them, until nothing is new."""
        fresh: deque[Key] = deque()
        ahead: set[Key] = set()  # those of which the users were parsed, if they are many
        while self._unmarked or fresh or self._mark_graphs(fresh):
            if self._unmarked:
                self._mark_file(self._unmarked.popleft(), fresh)
                continue
            if not fresh:
                continue
            key = fresh[0]
            if key not in ahead:
                self._look_ahead(fresh, ahead)
            fresh.popleft()
            if not self._is_followed(key):
                continue
            runs = self.runs[key]
            for named, name in self._called_as(key):
                self.read_users(named, below=runs.forwards)
                for caller, index in self.callers(name):
                    self._mark_caller(caller, index, key, runs, fresh)
                for spawner, index in self.spawners(name):
                    self._mark_spawner(spawner, index, key, runs, fresh)
            for spawner, index in self._spawners.get(f"#{key[1]}", ()):
                if spawner[0] == key[0]:
                    self._mark_spawn(spawner, self.function(spawner), index, self.function(spawner).spawns[index], runs, fresh)

    def _called_as(self, key: Key) -> Iterator[tuple[FunctionFacts, str]]:
        """Yield a function with its name, and as `make()` the one around it, if that returns it: who names that may call it."""
        function = self.function(key)
        yield function, function.name
        around = self.files[key[0]].functions[function.outer]
        if function.outer > 0 and not function.class_name and function.name in around.returned:
            yield around, f"{around.name}()"

    def _look_ahead(self, fresh: Collection[Key], ahead: set[Key]) -> None:
        """Parse the files together that may call these functions."""
        followed = {key for key in fresh if key not in ahead and self._is_followed(key)}
        functions = [(named, self.runs[key].forwards) for key in sorted(followed) for named, _ in self._called_as(key)]
        self.source.look_ahead(question(f, below=forwards) for f, forwards in functions if f.outer <= 0 or f.class_name)
        ahead.update(fresh)

    def _is_followed(self, key: Key) -> bool:
        """Return whether those that call a function that runs inference are looked for."""
        function = self.function(key)
        if function.watches or function.name in {"__call__", "__init__"}:
            return False
        return not is_no_answer(function.name) and not (self.runs[key].forwards and sends_others(function))

    def _mark_file(self, path: str, fresh: deque[Key]) -> None:
        """Mark the functions of a file that make direct calls."""
        for number, function in enumerate(self.files[path].functions):
            key = (path, number)
            for index, call in enumerate(function.calls):
                if (call.direct and not self._calls_no_model(key, call)) or self._judge_by_maker(key, call):
                    if self.graphs.may_be_graph(key, call.ref):
                        self._graphs.append((key, index, False))
                    else:
                        self._mark_direct(key, function, index, call, fresh)
            for index, spawn in enumerate(function.spawns):
                if spawn.direct:
                    if self.graphs.may_be_graph(key, spawn.target):
                        self._graphs.append((key, index, True))
                    else:
                        self._mark_direct_spawn(key, function, index, spawn, fresh)

    def _calls_no_model(self, key: Key, call: CallFacts) -> bool:
        """Return whether the receiver has no such method, or that of `invoke` is a function: LangChain made a tool of it."""
        receiver, _, verb = call.ref.rpartition(".")
        if verb not in {"invoke", "ainvoke"} or not receiver.isidentifier():
            return self.names.lacks_method(*key, call.ref)
        value = self.names.find(*key, receiver)
        return value is not None and value.kind == "function"

    def _mark_graphs(self, fresh: deque[Key]) -> bool:
        """Mark the calls of graphs that run a model, once all else is known; return whether there were any."""
        waiting, self._graphs = self._graphs, []
        for key, index, spawned in waiting:
            function = self.function(key)
            if not self.graphs.runs_model(key, function.spawns[index].target if spawned else function.calls[index].ref):
                self._graphs.append((key, index, spawned))
            elif spawned:
                self._mark_direct_spawn(key, function, index, function.spawns[index], fresh)
            else:
                self._mark_direct(key, function, index, function.calls[index], fresh)
        return len(self._graphs) < len(waiting) or bool(self._unmarked)

    def _mark_direct_spawn(self, key: Key, function: FunctionFacts, index: int, spawn: Spawn, fresh: deque[Key]) -> None:
        runs = Runs(spawn.target, key[0], spawn.place[0], blocks=spawn.kind in {"thread", "executor"})
        self._mark_spawn(key, function, index, spawn, runs, fresh)

    def _judge_by_maker(self, key: Key, call: CallFacts) -> bool:
        """Return whether the receiver was made by an SDK in another file: then the call is inference, too."""
        receiver, _, verb = call.ref.rpartition(".")
        if not receiver or verb not in MADE_VERBS:
            return False
        value = self.names.find(key[0], key[1], receiver)
        if value is None or value.kind != "made" or not is_made_call(value.name, verb):
            return False
        call.direct = verb
        call.stream = int("stream" in verb)
        entered = call.use == "with" and self.function(key).is_async  # as pydantic-ai's `async with agent.run_stream()`
        call.blocking = 0 if verb.startswith("a") or call.use == "await" or entered else 1
        return True

    def _mark_direct(self, key: Key, function: FunctionFacts, index: int, call: CallFacts, fresh: deque[Key]) -> None:
        if self.is_off(key[0], call):
            return
        blocks = call.blocking == 1 or (call.blocking == UNKNOWN and self._may_block(key, function, call))
        streams = call.stream == 1
        runs = Runs(
            call.ref,
            key[0],
            call.place[0],
            streams,
            blocks,
            False,
            call.stream == UNKNOWN,
            call.forwards,
            kept=call.unanswered and not function.handler,
            labels=call.brief,
            needs=frozenset({frozenset(call.needs)}) if call.needs else ALWAYS,
            sure=not call.maybe,
        )
        self.by_call[(*key, index)] = runs
        if call.into in SPAWNING or self._is_rare(key, function, index):
            return
        runs = replace(runs, passed=not call.lost, branches=call.branches, stored=function.stores)
        consumes = self._consumes(function, call)
        blocked = blocks and function.is_async and not call.is_known_to_block
        if streams and consumes and not function.yields:
            self.collected.add((*key, index))
        if function.yields or (streams and not consumes):
            self._set(key, replace(runs, streams=True, may_stream=False), fresh)
        elif call.use in {"await", "given"} or blocks or streams:
            self._set(
                key,
                replace(runs, streams=False, blocks=blocks and not function.is_async, blocked=blocked),
                fresh,
            )
        elif call.use == "return":
            self._set(key, replace(runs, streams=runs.may_stream, returned=not function.is_async), fresh)
        elif call.use != "argument":
            self._set(key, replace(runs, streams=True, blocks=False, may_stream=False), fresh)

    def _may_block(self, key: Key, function: FunctionFacts, call: CallFacts) -> bool:
        """Return whether a call blocks of which only the name says that it is inference: `llm.generate(text)`."""
        if not function.is_async:
            return call.use not in {"return", "argument", "given"}
        found = [self.function(k) for k in self.names.callees(*key, call.ref)]
        return bool(found) and not any(f.is_async or f.yields or f.abstract for f in found)

    def _set(self, key: Key, runs: Runs, fresh: deque[Key]) -> None:
        """Keep what is known of a function: that it computes outweighs that it returns a stream."""
        known = self.runs.get(key)
        if known is None or runs.rank > known.rank:
            self.runs[key] = runs
            fresh.append(key)
        elif runs.rank == known.rank and known.needs and not runs.needs <= known.needs:
            self.runs[key] = replace(known, needs=either(known.needs, runs.needs))
            fresh.append(key)

    @staticmethod
    def _consumes(function: FunctionFacts, call: CallFacts) -> bool:
        """Return whether the function reads the whole stream that the call returns."""
        return call.into in COLLECTING or function.loops_over(call) or _NO_STREAM.search(function.name) is not None

    def _is_rare(self, key: Key, function: FunctionFacts, index: int) -> bool:
        """Return whether a call is in one of many branches of which, as far as is known, most run no inference."""
        if not function.calls[index].chosen:
            return False
        chosen = self._chosen[key]
        chosen.add(index)
        return 2 * len(chosen) < function.choices

    def is_off(self, path: str, call: CallFacts) -> bool:
        """Return whether a call is made only with a setting that is off by default, or that does not exist."""
        return any(self.is_off_by(condition, path) for condition in call.switches) or self._undeclared.stops(call, path)

    def is_off_by(self, condition: str, path: str) -> bool:
        """Return whether a condition, as it is written in a file, is false by default."""
        return self.defaults.rules_out(condition, path)

    def is_unmade(self, caller: Key, call: CallFacts, key: Key) -> bool:
        """Return whether a call certainly does not run this function: it raises, nobody awaits it, or its class is not made."""
        return self._unmade.is_unmade(caller, call, key, self.handler) or self.chosen.is_unchosen(key)

    def _resolves(self, caller: Key, ref: str, key: Key) -> bool:
        """Return whether a call runs this function; of several that it may run, at least half must run inference."""
        found = self.names.callees(caller[0], caller[1], ref)
        if key not in found:
            return False
        all_of_them = len(found) + self.names.rivals(*caller, ref, found)
        return all_of_them == 1 or 2 * sum(k in self.runs for k in found) >= all_of_them

    def _mark_caller(self, caller: Key, index: int, key: Key, runs: Runs, fresh: deque[Key]) -> None:
        function, callee = self.function(caller), self.function(key)
        call = function.calls[index]
        if call.direct or caller == key or self.is_off(caller[0], call) or not self._resolves(caller, call.ref, key):
            return
        if self.is_unmade(caller, call, key):
            return
        needs = needed(call, function, callee, runs.needs, lambda setting: self.defaults.rules_out(setting, caller[0]))
        if needs is None:
            return
        lazy = runs.streams or (runs.may_stream and call.stream == 1)
        runs_it = call.into in OWN_LOOP  # asyncio.run(answer())
        waited = runs.returned and call.use in {"value", "drop", "loop"}  # who does not await it gets the answer itself
        own_loop = runs.own_loop or (call.into == "asyncio.run" and not _knows_loops(function))
        if own_loop and function.is_async and not runs.streams:
            return  # asyncio.run raises where a loop runs already
        here = replace(
            runs,
            forwards=runs.forwards and not call.body,
            own_loop=own_loop,
            kept=runs.kept or (call.unanswered and not function.handler),
            labels=runs.labels or only_labels(callee.name, callee.class_name),
            streams=lazy,
            blocks=runs.blocks or runs_it or waited,
            blocked=runs.blocked and (function.is_async or not runs_it),  # a loop of its own is nobody else's
            may_stream=runs.may_stream and call.stream == UNKNOWN,
            needs=needs,
            sure=runs.sure and self.names.is_certain(*caller, call.ref),
            steps=runs.steps + 1,
            returned=runs.returned and call.use == "return" and not function.is_async,
        )
        known = self.by_call.get((*caller, index))
        if known is None or here.rank > known.rank:
            self.by_call[(*caller, index)] = here
        here = replace(  # for who calls this function in turn
            here,
            sure=here.sure and not call.maybe,
            passed=here.passed and not call.lost,
            branches=here.branches + call.branches,
            stored=here.stored or function.stores,
        )
        if call.into not in SPAWNING and not self._is_rare(caller, function, index):
            self._pass_on(caller, index, here, fresh, is_coroutine=callee.is_async and not runs_it)

    def _pass_on(self, caller: Key, index: int, here: Runs, fresh: deque[Key], *, is_coroutine: bool) -> None:
        """Keep what a function runs by one of its calls: what that makes may be read there, awaited or handed on."""
        function, lazy = self.function(caller), here.streams
        call = function.calls[index]
        if function.yields or (lazy and not self._consumes(function, call)):
            if function.yields or call.use in {"return", "await", "value"}:
                if lazy and function.yields and function.is_async and not function.loops_over(call, plainly=True):
                    here = replace(here, blocks=False)  # it reads the stream in a thread
                self._set(caller, replace(here, streams=True, may_stream=False), fresh)
        elif lazy:
            self.collected.add((*caller, index))
            self._set(caller, replace(here, streams=False, blocks=not function.is_async), fresh)
        elif is_coroutine:
            if call.use in {"await", "given", "return"}:
                self._set(caller, replace(here, blocks=False), fresh)
        else:
            blocks = here.blocks
            self._set(
                caller,
                replace(here, blocks=blocks and not function.is_async, blocked=here.blocked or (blocks and function.is_async)),
                fresh,
            )

    def _mark_spawner(self, spawner: Key, index: int, key: Key, runs: Runs, fresh: deque[Key]) -> None:
        function = self.function(spawner)
        spawn = function.spawns[index]
        if spawn.direct:
            return
        is_it = self.is_exactly if spawn.kind in {"method", "called"} else self._resolves
        if is_it(spawner, spawn.target, key) and (spawn.kind != "called" or self._is_called_by(spawner, spawn.verb)):
            self._mark_spawn(spawner, function, index, spawn, runs, fresh)

    def _is_called_by(self, spawner: Key, ref: str) -> bool:
        """Return whether a function of the project calls what it is given first, and returns the answer."""
        found = [self.function(key) for key in self.names.callees(*spawner, ref)]
        return bool(found) and all(next(iter(f.parameters), "") + "()" in f.returned and not f.is_async for f in found)

    def is_exactly(self, caller: Key, ref: str, key: Key) -> bool:
        """Return whether a reference stands for this function, not only by its name: `body.answer` is no function."""
        value = self.names.find(*caller, ref)
        return value is not None and value.kind == "function" and (value.path, value.number) == key

    def _mark_spawn(self, key: Key, function: FunctionFacts, index: int, spawn: Spawn, runs: Runs, fresh: deque[Key]) -> None:
        if (*key, index) in self.by_spawn:
            return
        runs = replace(
            runs,
            needs=ALWAYS,
            own_loop=False,
            steps=runs.steps + 1,
            sure=runs.sure and self.names.is_certain(*key, spawn.target),
        )
        self.by_spawn[(*key, index)] = runs
        if function.waits_for(spawn) and runs.streams and function.yields:
            self._set(key, replace(runs, blocks=False, passed=runs.passed and not spawn.lost), fresh)  # it passes a stream on
        elif function.waits_for(spawn) and not runs.streams:
            stands = function.blocks_for(spawn)
            # What is no task is run by a thread.
            blocked = (spawn.kind == "task" and (runs.blocked or runs.blocks)) or (stands and function.is_async)
            passed = runs.passed and not spawn.lost
            blocks = stands and not function.is_async
            self._set(key, replace(runs, streams=function.yields, blocks=blocks, blocked=blocked, passed=passed), fresh)
        elif spawn.kind == "called" and runs.blocks and not function.is_async and not function.yields and not runs.streams:
            self._set(key, replace(runs, passed=runs.passed and not spawn.lost), fresh)


_LOOPS = frozenset({"get_running_loop", "get_event_loop", "is_running", "submit", "apply"})


def _knows_loops(function: FunctionFacts) -> bool:
    """Return whether a function asks whether a loop runs, or uses a thread then; nest_asyncio.apply() allows several."""
    return any(_last(call.ref) in _LOOPS for call in function.calls) or bool(function.spawns)


def _last(ref: str) -> str:
    return ref.rpartition(".")[2]
