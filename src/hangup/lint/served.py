"""Which functions a client's request reaches, on which event loop, and without switches that only some clients set."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

from hangup.lint.facts import CallFacts, FunctionFacts, Spawn
from hangup.lint.files import SourceFiles
from hangup.lint.guards import ALWAYS, Needs, needed
from hangup.lint.names import Key, Names
from hangup.lint.request_switches import RequestSwitches

OWN_LOOP = frozenset({"asyncio.run", "run_until_complete"})
SPAWNING = frozenset({"create_task", "ensure_future", "add_task", "BackgroundTask", "Thread", "submit"})
STEPS_MAX = 500  # after which a function is taken for one that a request reaches


class ServingProject(Protocol):
    """What is asked here about a project."""

    source: SourceFiles
    names: Names

    def function(self, key: Key) -> FunctionFacts: ...

    def handler(self, key: Key) -> str: ...

    def read_users(self, function: FunctionFacts) -> None: ...

    def callers(self, name: str) -> list[tuple[Key, int]]: ...

    def spawners(self, name: str) -> list[tuple[Key, int]]: ...

    def is_off(self, path: str, call: CallFacts) -> bool: ...

    def is_off_by(self, condition: str, path: str) -> bool: ...

    def is_unmade(self, caller: Key, call: CallFacts, key: Key) -> bool: ...

    def is_exactly(self, caller: Key, ref: str, key: Key) -> bool: ...


class Served:
    def __init__(self, project: ServingProject) -> None:
        self._project = project
        self._switches = RequestSwitches(project.source.naming)
        self._reached: dict[Key, bool] = {}

    def is_unasked(self, key: Key, needs: Needs) -> bool:
        """Return whether a handler runs nothing that needs these, unless its client sets a switch."""
        return self._switches.is_unasked(key[0], self._project.function(key), needs)

    def is_reached(self, key: Key) -> bool:
        """Return whether a request reaches this function: a handler, or something that calls it, is a handler."""
        known = self._reached.get(key)
        if known is not None:
            return known
        seen, todo = {key}, [key]
        while todo:
            here = todo.pop()
            if self._reached.get(here) or self._project.handler(here):
                self._reached[key] = True
                return True
            for caller, _ in self._callers(here):
                if caller not in seen:
                    seen.add(caller)
                    todo.append(caller)
        for other in seen:
            self._reached[other] = False
        return False

    def shares_loop(self, key: Key, needs: Needs) -> bool:
        """Return whether a request reaches this function on a loop that serves others as well, by the declared defaults.

        The loop of `asyncio.run` in a sync view is nobody else's.
        """
        if not self.is_reached(key):
            return False
        project = self._project
        start = (key, needs)
        seen, todo = {start}, [start]
        while todo and len(seen) < STEPS_MAX:
            here, wanted = todo.pop()
            function = project.function(here)
            framework = project.handler(here)
            if framework == "flask":
                continue  # it runs each async view on a loop of its own
            if framework and not self._switches.is_unasked(here[0], function, wanted):
                return True
            for caller, call in self._callers(here):
                above: Needs | None = ALWAYS
                if call is not None:
                    outer = project.function(caller)
                    if (call.into in OWN_LOOP and not outer.is_async) or project.is_off(caller[0], call):
                        continue
                    above = needed(call, outer, function, wanted, partial(project.is_off_by, path=caller[0]))
                if above is not None and (caller, above) not in seen:
                    seen.add((caller, above))
                    todo.append((caller, above))
        return bool(todo)

    def way_from_handler(self, key: Key) -> tuple[Key, list[CallFacts]] | None:
        """Return the nearest handler that leads to this function, and the calls on the way, if any does."""
        seen: set[Key] = {key}
        level: list[tuple[Key, list[CallFacts]]] = [(key, [])]
        while level and len(seen) < STEPS_MAX:
            for here, way in level:
                if self._project.handler(here):
                    return here, way
            above: list[tuple[Key, list[CallFacts]]] = []
            for here, way in level:
                for caller, call in self._callers(here):
                    if caller not in seen:
                        seen.add(caller)
                        above.append((caller, [call, *way] if call is not None else way))
            level = above
        return None

    def _callers(self, key: Key) -> Iterator[tuple[Key, CallFacts | None]]:
        """Yield who waits for a function, or sends what it makes, with the call if it is one: not who starts it in the
        background."""
        project = self._project
        function = project.function(key)
        if function.outer > 0:
            yield (key[0], function.outer), None
        name = function.name
        if not name:
            return
        project.read_users(function)
        for caller, index in project.callers(name):
            call = project.function(caller).calls[index]
            if call.into in SPAWNING or key not in project.names.callees(caller[0], caller[1], call.ref):
                continue
            if not project.is_unmade(caller, call, key):
                yield caller, call
        for caller, index in project.spawners(name):
            spawn = project.function(caller).spawns[index]
            if not self._is_detached(caller, spawn) and (
                project.is_exactly(caller, spawn.target, key)
                if spawn.kind == "method"
                else key in project.names.callees(*caller, spawn.target)
            ):
                yield caller, None

    def _is_detached(self, caller: Key, spawn: Spawn) -> bool:
        """Return whether nobody waits for what is started; a task may feed a stream."""
        if spawn.kind not in {"background", "thread", "task"}:
            return False
        project = self._project
        function = project.function(caller)
        inside = project.names.inside(caller)
        feeds = function.yields or function.sends_stream or any(project.function(k).yields for k in inside)
        waited = spawn.handle == "await" or spawn.handle in function.handled
        return not feeds and (spawn.kind != "task" or not waited)
