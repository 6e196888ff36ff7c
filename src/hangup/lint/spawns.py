"""Finds work that a function gives to something else: background tasks, tasks, threads, executors, shields, retries, queues.

Whether that work is inference, the project decides: it may be in another file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from functools import cache

from hangup.lint import vocabulary
from hangup.lint.facts import FunctionFacts, Spawn
from hangup.lint.source import Frame, Module, Site
from hangup.lint.source import Function as Scope
from hangup.lint.text import places, reference
from hangup.lint.walking import walk

_TASKS = frozenset({"create_task", "ensure_future"})
_EXECUTORS = {
    "to_thread": 0,
    "run_in_executor": 1,
    "run_in_threadpool": 0,
    "run_sync": 0,
    "submit": 0,
    "map": 0,
    "sync_to_async": 0,
}
_GIVING = (
    frozenset({"add_task", "BackgroundTask", "Thread", "shield", "CancelScope", "add_node"}) | _TASKS | frozenset(_EXECUTORS)
)
_STOPS = re.compile(r"stopping_criteria|stop_event|cancel_event|stop_flag|should_stop|cancel_token|abort_event|interrupt", re.I)
_ENDS = re.compile(r"(^|[._])(cancel|abort|stop|aclose|close|terminate|kill|shutdown|set)(_\w+)?$", re.I)
_CLOSES_SOCKET = re.compile(r"(^|[._])(ws|(web_?)?socket)\.close$", re.I)
_STOPPERS = re.compile(r"cancel|drain|stop|clean|terminate|shutdown", re.I)
_WAITING = re.compile(r"request|job|pending|wait|input|incoming|prompt|infer|batch|work|task|quer[iy]", re.I)
_LEAVING = re.compile(r"output|result|response|token|chunk|out_|event|log|stream|message|notif|update|finish|done", re.I)
_WAITS = frozenset({"asyncio.wait_for", "asyncio.gather", "asyncio.shield"})
_QUEUES = frozenset({"asyncio.Queue", "asyncio.PriorityQueue", "queue.Queue", "queue.PriorityQueue", "queue.SimpleQueue"})


def spawn(module: Module, site: Site, last: str, made: FunctionFacts) -> None:
    """Note what this call gives away, if it does; `last` is the last part of its name."""
    if last in _GIVING:
        _give(module, site, last, made)
    elif site.awaited:
        _pass(module, site, made)
    elif site.node.args and _may_be_function(module, site.node.args[0]) and _may_be_function(module, site.node.func):
        _note(module, site, made, "called", site.node.args[0])  # guarded(ask, text): if guarded() calls what it is given
    if _ends(last) and not _CLOSES_SOCKET.search(site.name):  # which ends none of the tasks beside it
        made.cancels = True
        made.ends |= _is_ending(site.frame)


@cache
def _ends(name: str) -> bool:
    return _ENDS.search(name) is not None


def _give(module: Module, site: Site, last: str, made: FunctionFacts) -> None:
    arguments = site.node.args
    if last in {"add_task", "BackgroundTask"}:
        if arguments and not isinstance(arguments[0], ast.Call) and (last == "BackgroundTask" or _is_background(site, made)):
            _note(module, site, made, "background", arguments[0])
    elif last in _TASKS:
        if arguments and not _is_owned(site) and isinstance(arguments[0], ast.Call):
            _note(module, site, made, "task", arguments[0].func, arguments[0])
    elif last == "Thread":
        target = site.keyword("target")
        if target is not None:
            _note(module, site, made, "thread", target)
    elif last in _EXECUTORS:
        position = _EXECUTORS[last]
        is_other = (last == "run_sync" and "to_thread" not in site.name) or (last == "map" and not _is_pooled(module, site))
        if len(arguments) > position and not is_other:
            _note(module, site, made, "executor", arguments[position])
    elif site.name == "asyncio.shield":
        if arguments:
            inner = _assigned_call(module, arguments[0], site.function)
            if inner is not None:
                _note(module, site, made, "shield", inner.func, inner)
    elif last == "add_node":
        if arguments and "langgraph" in module.packages:
            _note(module, site, made, "node", arguments[min(1, len(arguments) - 1)])
    elif last == "CancelScope" and isinstance(site.statement, ast.With) and _is_true(site.keyword("shield")):
        for statement in site.statement.body:
            for node in walk(statement):
                if isinstance(node, ast.Call):
                    _note(module, site, made, "shield", node.func, node)


def _pass(module: Module, site: Site, made: FunctionFacts) -> None:
    """Note a function that an awaited call is given: `await retry(ask)` runs it, and `await in_thread(rag.query, text)`."""
    for argument in site.node.args[:2]:
        if isinstance(argument, ast.Lambda):
            _note(module, site, made, "passed", argument)
            return
    names = [a for a in site.node.args[:2] if isinstance(a, ast.Name)]
    inner = {name for f in site.function.around() if f.outer for name in module.inner_names.get(f.number, ())}
    if any(a.id in inner for a in names):
        for argument in names:
            _note(module, site, made, "passed", argument)
    elif site.node.args:
        first = site.node.args[0]
        if isinstance(first, ast.Attribute) or _may_be_function(module, first):
            _note(module, site, made, "method", first)
    for keyword in site.node.keywords:
        if _may_be_function(module, keyword.value, inner):
            _note(module, site, made, "method", keyword.value)


def _may_be_function(module: Module, node: ast.expr, inner: Collection[str] = ()) -> bool:
    """Return whether a name may be that of a function: an imported one, one of the file, or one of these."""
    return isinstance(node, ast.Name) and (
        node.id in module.imports or node.id in module.inner_names.get(0, ()) or node.id in inner
    )


def _note(module: Module, site: Site, made: FunctionFacts, kind: str, target: ast.expr, call: ast.Call | None = None) -> None:
    """Note a spawn of `target`; `call` is the call of it, where it is written."""
    if isinstance(target, ast.Call) and reference(target.func).rpartition(".")[2] == "partial" and target.args:
        target = target.args[0]
    ref = reference(target)
    if isinstance(target, ast.Lambda):
        number = next((f.number for f in module.functions if f.node is target), -1)
        ref = f"#{number}"
    if isinstance(target, ast.Name) and (values := site.function.assigned.get(target.id)):
        inner = values[-1]
        if isinstance(inner, ast.Lambda):
            ref = f"#{next((f.number for f in module.functions if f.node is inner), -1)}"
    if not ref:
        return
    made_of = call or ast.Call(func=target, args=[], keywords=site.node.keywords)  # to_thread(create, model=..., messages=...)
    pseudo = Site(made_of, module.dotted(target), site.frame, site.statement)
    verb = vocabulary.direct(module, pseudo) if isinstance(target, (ast.Name, ast.Attribute)) else ""
    if (
        not verb
        and kind == "thread"
        and "generate" in ref
        and any("streamer" in name.lower() for name in site.function.assigned)
    ):
        verb = "generate"
    read = kind == "executor" and _is_read_by_loop(site) and (not verb or vocabulary.streams(module, pseudo, verb) == 1)
    handle = _handle(module, site)
    made.spawns.append(Spawn(kind, ref, places(site.node), handle, verb, _is_stoppable(module, site), site.name, read))


def _is_read_by_loop(site: Site) -> bool:
    """Return whether a plain loop goes over what an awaited call returns: `made = await to_thread(ask)`, `for part in made`."""
    statement = site.statement
    if not site.awaited or not isinstance(statement, (ast.Assign, ast.For)):
        return False
    value = statement.value if isinstance(statement, ast.Assign) else statement.iter
    if not isinstance(value, ast.Await) or value.value is not site.node:
        return False
    if isinstance(statement, ast.For):
        return True
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or len(site.function.assigned[target.id]) > 1:
        return False
    return any(isinstance(loop, ast.For) and reference(loop.iter) == target.id for loop, _ in site.function.loops)


def _is_background(site: Site, made: FunctionFacts) -> bool:
    receiver = site.name.rpartition(".")[0]
    return "BackgroundTasks" in made.parameters.get(receiver, "") or bool(
        re.search(r"background|bg_tasks|^tasks$", receiver, re.I)
    )


def _is_owned(site: Site) -> bool:
    """Return whether a task group owns the task that this call creates."""
    receiver = site.name.rpartition(".")[0].rpartition(".")[2].lower()
    return "group" in receiver or receiver in {"tg", "nursery"}


def _is_pooled(module: Module, site: Site) -> bool:
    """Return whether this gives work to a pool inside the `with` that made it: who leaves that waits for all of it."""
    pool, _, verb = site.name.rpartition(".")
    if verb not in {"submit", "map"} or not pool:
        return False
    entered = [item for frame in site.frame.outward() if isinstance(frame.node, ast.With) for item in frame.node.items]
    return any(
        isinstance(item.optional_vars, ast.Name)
        and item.optional_vars.id == pool
        and module.dotted(item.context_expr).endswith("PoolExecutor")
        for item in entered
    ) and not any(other.name == f"{pool}.shutdown" for other in site.function.calls)


def _handle(module: Module, site: Site) -> str:
    statement = site.statement
    if _is_pooled(module, site):
        return "result"
    if isinstance(statement, ast.Assign) and statement.value is site.node and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id  # also if it is awaited by this name later: it may be cancelled by it, too
    if site.awaited or _is_awaited_in(module, site):
        # a function that is not async waits for a thread's answer by as_completed()
        return "await" if site.function.is_async or not site.name.endswith(".submit") else "result"
    if any(isinstance(n, ast.Attribute) and n.attr == "result" and n.value is site.node for n in walk(statement)):
        return "result"
    if site.dropped:
        return "drop"
    if (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
    ):
        return "drop" if statement.value.func.value is site.node and statement.value.func.attr == "start" else "value"
    return "value"


def _is_awaited_in(module: Module, site: Site) -> bool:
    """Return whether a call is what an awaited one waits for: await wait_for(to_thread(ask), 30)."""
    value = getattr(site.statement, "value", None)
    outer = value.value if isinstance(value, ast.Await) else None
    if not isinstance(outer, ast.Call) or module.dotted(outer.func) not in _WAITS:
        return False
    return any(argument is site.node for argument in outer.args)


def _is_stoppable(module: Module, site: Site) -> bool:
    """Return whether the arguments hold something that can stop the work: a stopping criterion or an event."""
    for argument in (*site.node.args[1:], *(k.value for k in site.node.keywords)):
        given = [argument]
        if isinstance(argument, ast.Name):
            given += module.values_of(argument, site.function)
        for value in given:
            for node in walk(value):
                text = getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "attr", None)
                text = text or (node.value if isinstance(node, ast.Constant) else None)
                if isinstance(text, str) and _STOPS.search(text):
                    return True
    return False


def _assigned_call(module: Module, node: ast.expr, scope: Scope) -> ast.Call | None:
    """Return the call that is shielded: written there, or assigned to a name, also through create_task."""
    if isinstance(node, ast.Name):
        values = module.values_of(node, scope)
        node = values[-1] if values else node
    if isinstance(node, ast.Call) and reference(node.func).rpartition(".")[2] in _TASKS and node.args:
        node = node.args[0]
    return node if isinstance(node, ast.Call) else None


def _is_ending(frame: Frame) -> bool:
    """Return whether this is in a `finally`, or in a clause that catches the cancellation."""
    for outer in frame.outward():
        if outer.part == "finalbody":
            return True
        if outer.part == "handler" and isinstance(outer.node, ast.ExceptHandler):
            names = ast.unparse(outer.node.type) if outer.node.type is not None else "BaseException"
            if re.search(r"BaseException|Cancelled|GeneratorExit|Disconnect", names):
                return True
    return False


def more(module: Module, scope: Scope, made: FunctionFacts) -> None:
    """Note late polls, retries, queues and what becomes of task handles, which need the whole function."""
    _late_polls(module, scope, made)
    _retries(module, scope, made)
    _queues(module, scope, made)
    names = {s.handle for s in made.spawns if s.kind in {"task", "executor", "thread"}} - {"await", "drop", "value", "result"}
    if names:
        made.handled = sorted(_handled(module, scope, names, made.spawns))


def _handled(module: Module, scope: Scope, names: set[str], started: list[Spawn]) -> set[str]:
    """Return the handles that the function waits for, as `=name` those of which it asks for the result, and as `+name` those
    that it cancels or leaves to others to cancel."""
    found: set[str] = set()
    idle = {id(s.node.func) for s in scope.calls if s.name.endswith(".cancel") and _ends_nothing(s, started)}
    parameters = {p.arg for p in scope.parameters} | {"self"}
    for node in module.nodes(scope):
        if isinstance(node, ast.Await):
            found |= _names_in(node.value)
        elif isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
            waited = {n for inner in walk(node.value) if _waits(inner) for n in _names_in(inner)}
            found |= {f"+{name}" for name in _names_in(node.value) - waited}
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in {"result", "join", "get_loop"}
        ):
            found |= {node.value.id, f"={node.value.id}"} if node.attr == "result" else {node.value.id}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr == "cancel":
            found |= {f"+{node.value.id}"} if id(node) not in idle else set()
        elif isinstance(node, ast.Call) and (
            reference(node.func).partition(".")[0] in parameters or _STOPPERS.search(reference(node.func))
        ):
            found |= {
                f"+{name}"
                for a in node.args
                if isinstance(a, (ast.Name, ast.List, ast.Tuple, ast.Set))
                for name in _names_in(a)
            }
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and not isinstance(node.targets[0], ast.Name):
            found.add(f"+{node.value.id}")  # self.task = task, tasks[id] = task
    found |= scope.awaited
    return {name for name in found if name.lstrip("+=") in names}


def _ends_nothing(site: Site, started: list[Spawn]) -> bool:
    """Return whether a call of `cancel` does not end the work when its client leaves.

    A generator that is closed comes no further than its last `yield`, but for `finally`; and who cancels a task before it
    starts one means the one before.
    """
    if site.function.yields:
        return not _is_ending(site.frame)
    lines = [spawn.place[0] for spawn in started if spawn.handle == site.name.removesuffix(".cancel")]
    return not site.function.loops and all(site.node.lineno < line for line in lines)


def _waits(node: ast.AST) -> bool:
    """Return whether an expression waits for something: `await task`, `future.result`."""
    return isinstance(node, ast.Await) or (isinstance(node, ast.Attribute) and node.attr == "result")


def _names_in(node: ast.AST) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, ast.Name)}


def _late_polls(module: Module, scope: Scope, made: FunctionFacts) -> None:
    if scope.yields or not scope.is_async:
        return
    polls = [s for s in scope.calls if s.name.endswith("is_disconnected") and s.awaited]
    if not polls or any(
        s.name.rpartition(".")[2] in {"create_task", "start_soon", "wait"} for f in scope.around() for s in f.calls
    ):
        return
    loops = [_loop_around(site) for site in polls]
    first = loops[0]
    if all(isinstance(loop, ast.AsyncFor) for loop in loops) and isinstance(first, ast.AsyncFor):
        node = first.iter.value if isinstance(first.iter, ast.Await) else first.iter
        ref = reference(node.func if isinstance(node, ast.Call) else node)
        verb = vocabulary.direct(module, site) if (site := module.site(node)) is not None else ""
        made.spawns.append(Spawn("poll", ref, places(polls[0].node), "value", verb))


def _loop_around(site: Site) -> ast.AST | None:
    return next((f.node for f in site.frame.outward() if isinstance(f.node, (ast.For, ast.AsyncFor, ast.While))), None)


def _retries(module: Module, scope: Scope, made: FunctionFacts) -> None:
    for decorator in scope.decorators:
        if _retries_for_ever(module, decorator):
            made.spawns.append(Spawn("retry", f"#{scope.number}", places(decorator), "value", verb=scope.name))
    for loop, _ in scope.loops:
        if isinstance(loop, ast.While) and _is_true(loop.test):
            for node in loop.body:
                if isinstance(node, ast.Try) and _repeats(module, loop, node):
                    for tried in (n for s in node.body for n in walk(s)):
                        if isinstance(tried, ast.Call) and module.site(tried) is not None:
                            site = module.site(tried)
                            assert site is not None
                            verb = vocabulary.direct(module, site)
                            made.spawns.append(
                                Spawn("retry", reference(tried.func), places(loop), "value", verb, verb=site.name)
                            )


def _retries_for_ever(module: Module, decorator: ast.expr) -> bool:
    name = module.dotted(decorator)
    given = {k.arg for k in decorator.keywords} if isinstance(decorator, ast.Call) else set()
    if None in given:
        return False
    if name == "tenacity.retry":
        return "stop" not in given
    return name in {"backoff.on_exception", "backoff.on_predicate"} and not given & {"max_tries", "max_time"}


_HARMLESS = re.compile(
    r"(^|\.)(sleep|print|info|debug|warning|warn|error|exception|critical|log|str|repr|print_exc|format_exc|uniform)$"
)


def _repeats(module: Module, loop: ast.While, node: ast.Try) -> bool:
    """Return whether this is `while True: try: ... return except: again`: no counter, no exit from a clause, and no call in
    one that might raise.
    """
    if not node.handlers or not any(
        isinstance(n, (ast.Return, ast.Break)) for s in (*node.body, *node.orelse) for n in walk(s)
    ):
        return False
    if any(isinstance(n, (ast.AugAssign, ast.Compare, ast.Raise)) for s in loop.body for n in walk(s)):
        return False
    for clause in node.handlers:
        for inner in (n for s in clause.body for n in walk(s)):
            if isinstance(inner, (ast.Break, ast.Return)):
                return False
            if isinstance(inner, ast.Call) and not _HARMLESS.search(module.dotted(inner.func)):
                return False
    return True


def _queues(module: Module, scope: Scope, made: FunctionFacts) -> None:
    """Note each unbounded queue of this function, class or module, with the functions that take work from it."""
    for site in scope.calls:
        if site.name not in _QUEUES or _is_bounded(site):
            continue
        name = _assigned_name(site)
        if not _WAITING.search(name) or _LEAVING.search(name):
            continue
        for taker in module.functions:
            if any(isinstance(loop, ast.While) for loop, _ in taker.loops) and any(_takes(s, name) for s in taker.calls):
                made.spawns.append(Spawn("queue", f"#{taker.number}", places(site.node), "value", verb=name))


def _takes(site: Site, name: str) -> bool:
    head, _, verb = site.name.rpartition(".")
    return verb in {"get", "get_nowait"} and head.rpartition(".")[2] == name


def _is_bounded(site: Site) -> bool:
    size = site.node.args[0] if site.node.args else site.keyword("maxsize")
    return size is not None and not (isinstance(size, ast.Constant) and size.value == 0)


def _assigned_name(site: Site) -> str:
    statement = site.statement
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign) and statement.value is site.node:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is site.node:
        target = statement.target
    if isinstance(target, ast.Name):
        return target.id
    return target.attr if isinstance(target, ast.Attribute) else ""


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)
