"""The model of one file that the rules use: functions with their calls, loops, tries and yields, and what encloses each.

The tree is walked once. A `Frame` is a compound statement (or a function) and the part of it that encloses a node; the chain of
frames answers every "is this inside" question without parent pointers on each node.
"""

from __future__ import annotations

import ast
import re
from ast import Attribute, Name
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from hangup.lint.awaiting import Taken, add_holders, added_to, awaited_names, is_awaited_later, waits_for_all
from hangup.lint.walking import children, walk

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
LoopNode = ast.For | ast.AsyncFor | ast.While
_COMPREHENSIONS = frozenset({ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp})


class Frame:
    """A compound statement and one part of it: body, handler, orelse or finalbody."""

    __slots__ = ("function", "node", "part", "up")

    def __init__(self, node: ast.AST, part: str, up: Frame | None, function: Function) -> None:
        self.node = node
        self.part = part
        self.up = up
        self.function = function

    def outward(self) -> Iterator[Frame]:
        """Yield this frame and those around it, up to the enclosing function."""
        frame: Frame | None = self
        while frame is not None and frame.function is self.function:
            yield frame
            frame = frame.up

    def inside(self, node: ast.AST) -> bool:
        return any(frame.node is node for frame in self.outward())


class Site:
    """A call and its place in the source."""

    __slots__ = ("awaited", "frame", "name", "node", "statement")

    def __init__(self, node: ast.Call, name: str, frame: Frame, statement: ast.stmt) -> None:
        self.node = node
        self.name = name  # dotted, with imports resolved: "asyncio.create_task", "self.client.post"; "" if it is not a name
        self.frame = frame
        self.statement = statement
        self.awaited = False

    @property
    def function(self) -> Function:
        return self.frame.function

    @property
    def dropped(self) -> bool:
        """Return whether the call is a whole statement, so that its result is dropped."""
        return isinstance(self.statement, ast.Expr) and self.statement.value is self.node

    def keyword(self, *names: str) -> ast.expr | None:
        return next((k.value for k in self.node.keywords if k.arg in names), None)

    @property
    def is_given_to_tool(self) -> bool:
        """Return whether the first argument holds those of a tool: `matched.ainvoke(tool_args or {})`."""
        names = (n.id for n in walk(self.node.args[0]) if isinstance(n, ast.Name)) if self.node.args else ()
        return any("tool" in name.lower() for name in names)

    @property
    def has_double_star(self) -> bool:
        return any(k.arg is None for k in self.node.keywords)


class Function:
    """A function, a method or a lambda; the module itself is the outermost one."""

    __slots__ = (
        "annotated",
        "assigned",
        "awaited",
        "bound",
        "calls",
        "class_name",
        "comprehensions",
        "loops",
        "node",
        "number",
        "outer",
        "returns",
        "shared",
        "taken",
        "tries",
        "used",
        "yields",
    )

    def __init__(self, node: ast.AST, outer: Function | None, class_name: str, number: int = 0) -> None:
        self.node = node
        self.outer = outer
        self.class_name = class_name
        self.number = number  # in the file
        self.returns: list[ast.expr] = []
        self.calls: list[Site] = []
        self.loops: list[tuple[LoopNode, Frame]] = []
        self.comprehensions: list[ast.comprehension] = []  # loops in brackets
        self.tries: list[tuple[ast.Try, Frame]] = []
        self.yields: list[Frame] = []
        self.assigned: dict[str, list[ast.expr]] = defaultdict(list)  # name -> values assigned to it here
        self.annotated: dict[str, ast.expr] = {}  # name -> its annotation where it is assigned
        self.shared: set[str] = set()  # names that `global` gives to the module
        self.used: set[str] = set()  # names that are evaluated here
        self.awaited: set[str] = set()  # names of coroutines that are awaited here, alone or together
        self.taken: list[Taken] = []  # what loops and comprehensions go over
        self.bound: set[str] = set()  # names that something else than a parameter or an assignment gives a value here

    @property
    def name(self) -> str:
        return str(getattr(self.node, "name", ""))

    @property
    def is_async(self) -> bool:
        return isinstance(self.node, ast.AsyncFunctionDef)

    @property
    def is_async_generator(self) -> bool:
        return self.is_async and bool(self.yields)

    @property
    def decorators(self) -> list[ast.expr]:
        return list(getattr(self.node, "decorator_list", []))

    @property
    def parameters(self) -> list[ast.arg]:
        if not isinstance(self.node, FunctionNode):
            return []
        a = self.node.args
        return [*a.posonlyargs, *a.args, *a.kwonlyargs]

    def around(self) -> Iterator[Function]:
        """Yield this function and the functions around it."""
        function: Function | None = self
        while function is not None:
            yield function
            function = function.outer


_NO_PLACE = re.compile(r"""["'][^"'%\n]*["'][ \t]*%[ \t]*[A-Za-z_]""")


class Module:
    """A file after its walk."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.text = text
        self.tree = tree
        self.imports: dict[str, str] = {}  # local name -> full name
        self.classes: list[ast.ClassDef] = []
        self.top = Function(tree, None, "")
        self.functions: list[Function] = [self.top]
        self.attributes: dict[str, list[ast.expr]] = defaultdict(list)  # self.x -> values assigned to it anywhere
        self.fields: dict[tuple[str, str], list[ast.expr]] = defaultdict(list)  # the same by class
        self.states: list[tuple[str, ast.expr, int]] = []  # app.state.x = value, and the number of the function around
        self.facts: dict[type, object] = {}  # what rules compute once and share
        self.dead: list[tuple[int, int]] = []  # first and last lines of what is never run, which is not in the tree any more
        self.names: dict[int, set[str]] = defaultdict(set)  # id of a statement -> names in it, self.x for those of the instance
        self._sites: dict[int, Site] = {}
        self._nodes: dict[int, list[ast.AST]] = {}
        _Walk(self).run()
        self.packages = {name.partition(".")[0] for name in self.imports.values()}  # top-level ones that the file imports
        self.has_no_place = ('" % ' in text or "' % " in text) and _NO_PLACE.search(text) is not None  # may have "text" % name
        self.inner_names: dict[int, set[str]] = defaultdict(set)  # of the functions that are defined in each function
        self.given_to_constructors: set[tuple[str, str]] = set()  # class and parameter
        for function in self.functions:
            if function.outer is not None and not function.class_name:
                self.inner_names[function.outer.number].add(function.name)
            elif function.name == "__init__":
                self.given_to_constructors.update((function.class_name, parameter.arg) for parameter in function.parameters)

    def dotted(self, node: ast.AST | None) -> str:
        """Return `a.b.c` for a name or an attribute, imports resolved; skip calls and subscripts in between."""
        if isinstance(node, Name):
            return self.imports.get(node.id, node.id)
        parts: list[str] = []
        while True:
            if isinstance(node, Attribute):
                parts.append(node.attr)
                node = node.value
            elif isinstance(node, Name):
                parts.append(self.imports.get(node.id, node.id))
                parts.reverse()
                return ".".join(parts)
            elif isinstance(node, ast.Call):
                node = node.func
            elif isinstance(node, (ast.Subscript, ast.Await)):
                node = node.value
            else:
                parts.append("")
                return ".".join(reversed(parts))

    def site(self, node: ast.AST | None) -> Site | None:
        """Return the call at `node`, if it is one."""
        return self._sites.get(id(node))

    def calls(self) -> Iterator[Site]:
        return iter(self._sites.values())

    def nodes(self, function: Function) -> list[ast.AST]:
        """Return the nodes of a function, with those of functions inside it; computed once."""
        found = self._nodes.get(function.number)
        if found is None:
            found = self._nodes[function.number] = list(walk(function.node))
        return found

    def release(self) -> None:
        """Drop what refers to each other in a circle, so that the tree is freed at once, without the cycle collector."""
        for function in self.functions:
            function.calls.clear()
            function.loops.clear()
            function.tries.clear()
            function.yields.clear()

    def values_of(self, node: ast.AST, function: Function) -> list[ast.expr]:
        """Return what may be assigned to a name or an attribute of self, in the functions around or on the instance."""
        if isinstance(node, ast.Name):
            for scope in function.around():
                if node.id in scope.assigned:
                    return scope.assigned[node.id]
            return []
        if isinstance(node, ast.Attribute):
            return self.attributes.get(node.attr, [])
        return []


def _type_parameters(node: ast.AST) -> Iterator[str]:
    """Yield the names of the parameters in the brackets of `def ask[T](...)`."""
    for parameter in getattr(node, "type_params", ()):
        yield parameter.name


def _yields(statement: ast.stmt) -> bool:
    """Return whether a statement has a `yield` of its own function."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            todo.extend(children(node))
    return False


class _Walk:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.awaited: set[int] = set()

    def run(self) -> None:
        top = self.module.top
        self.block(self.module.tree.body, Frame(self.module.tree, "body", None, top), "")
        unsure = "isawaitable" in self.module.text or "iscoroutine" in self.module.text  # who asks may have no coroutine
        awaited = self.awaited
        for function in self.module.functions:
            add_holders(function.awaited, function.assigned, function.taken)
        for site in self.module.calls():
            if by_name := site.frame.function.awaited:
                by_name.update(added_to(site.node, by_name))
        for site in self.module.calls():
            by_name = site.frame.function.awaited
            if id(site.node) in awaited or (by_name and not unsure and is_awaited_later(site.node, site.statement, by_name)):
                site.awaited = True

    def block(self, body: list[ast.stmt], frame: Frame, class_name: str) -> bool:
        """Walk statements; return whether they always leave the block. What follows then is never run, and is dropped."""
        for number, statement in enumerate(body, 1):
            if self.statement(statement, frame, class_name):
                if number < len(body):
                    self.drop(body, number, frame)
                return True
        return False

    def drop(self, body: list[ast.stmt], number: int, frame: Frame) -> None:
        """Take statements that are never run out of the tree; a `yield` in them still makes the function a generator."""
        dead = body[number:]
        del body[number:]
        self.module.dead.append((dead[0].lineno, dead[-1].end_lineno or dead[-1].lineno))
        if any(_yields(statement) for statement in dead):
            frame.function.yields.append(frame)

    def statement(self, node: ast.stmt, frame: Frame, class_name: str) -> bool:
        """Walk a statement; return whether it always leaves the block that it is in."""
        kind = node.__class__
        if kind is ast.Expr:  # by far the most
            self.expression(node.value, frame, node)  # type: ignore[attr-defined]
            return False
        if kind is ast.Assign:
            self.expression(node.value, frame, node)  # type: ignore[attr-defined]
            for target in node.targets:  # type: ignore[attr-defined]
                self.assign(target, node.value, frame, class_name)  # type: ignore[attr-defined]
            return False
        match node:  # the most common first
            case ast.If():
                self.expression(node.test, frame, node)
                leaves = self.block(node.body, Frame(node, "body", frame, frame.function), class_name)
                return self.block(node.orelse, Frame(node, "orelse", frame, frame.function), class_name) and leaves
            case ast.Return():
                if node.value is not None:
                    frame.function.returns.append(node.value)
                    self.expression(node.value, frame, node)
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.defined(node, frame)
                self.block(node.body, self.enter(node, frame, class_name), "")
            case ast.AnnAssign():
                self.annotated(node, frame, class_name)
            case ast.For() | ast.AsyncFor():
                self.expression(node.iter, frame, node)
                if waits_for_all(node.iter):  # for answer in as_completed(answers)
                    frame.function.awaited.update(awaited_names(node.iter))
                self.bind(node.target, frame)
                self.loop(node, frame, class_name)
            case ast.Import() | ast.ImportFrom():
                self.imported(node, frame)
            case ast.With() | ast.AsyncWith():
                self.entered(node, frame)
                self.block(node.body, Frame(node, "body", frame, frame.function), class_name)
            case ast.Try() | ast.TryStar():
                return self.attempt(node, frame, class_name)
            case ast.ClassDef():
                self.module.classes.append(node)
                frame.function.bound.update((node.name, *_type_parameters(node)))
                for decorator in node.decorator_list:
                    self.expression(decorator, frame, node)
                self.block(node.body, Frame(node, "body", frame, frame.function), node.name)
            case ast.While():
                self.expression(node.test, frame, node)
                self.loop(node, frame, class_name)
            case ast.Global():
                frame.function.shared.update(node.names)
                self.module.top.bound.update(node.names)
            case ast.Match():
                self.expression(node.subject, frame, node)
                for case in node.cases:
                    self.bind(case.pattern, frame)
                    self.block(case.body, Frame(node, "body", frame, frame.function), class_name)
            case _:
                self.expression(node, frame, node)
                return isinstance(node, (ast.Raise, ast.Continue, ast.Break))
        return False

    def defined(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> None:
        frame.function.bound.add(node.name)
        for decorator in node.decorator_list:
            self.expression(decorator, frame, node)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.expression(default, frame, node)

    def entered(self, node: ast.With | ast.AsyncWith, frame: Frame) -> None:
        for item in node.items:
            self.expression(item.context_expr, frame, node)
            if isinstance(item.optional_vars, ast.Name):
                frame.function.assigned[item.optional_vars.id].append(item.context_expr)
            elif item.optional_vars is not None:
                self.bind(item.optional_vars, frame)

    def annotated(self, node: ast.AnnAssign, frame: Frame, class_name: str) -> None:
        if node.value is not None:
            self.expression(node.value, frame, node)
            self.assign(node.target, node.value, frame, class_name)
            if isinstance(node.target, ast.Name):
                frame.function.annotated[node.target.id] = node.annotation
        elif isinstance(node.target, ast.Name):
            frame.function.bound.add(node.target.id)
            if class_name:
                self.module.fields[class_name, node.target.id].append(node.annotation)

    def imported(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        for alias in node.names:
            frame.function.bound.add(alias.asname or alias.name.partition(".")[0])
            if isinstance(node, ast.Import):
                first = alias.name.partition(".")[0]
                self.module.imports[alias.asname or first] = alias.name if alias.asname else first
            else:
                head = "." * node.level + (node.module or "")
                if alias.name == "*":
                    self.module.imports[f"*{len(self.module.imports)}"] = head
                    continue
                self.module.imports[alias.asname or alias.name] = f"{head}.{alias.name}" if node.module else head + alias.name

    def enter(self, node: FunctionNode, frame: Frame, class_name: str) -> Frame:
        function = Function(node, frame.function, class_name, len(self.module.functions))
        self.module.functions.append(function)
        function.bound.update(_type_parameters(node))
        return Frame(node, "body", frame, function)

    def attempt(self, node: ast.Try | ast.TryStar, frame: Frame, class_name: str) -> bool:
        inner = Frame(node, "body", frame, frame.function)
        if isinstance(node, ast.Try):
            frame.function.tries.append((node, frame))
        leaves = self.block(node.body, inner, class_name)
        if leaves and node.orelse:
            self.drop(node.orelse, 0, frame)
        frame.function.bound.update(handler.name for handler in node.handlers if handler.name)
        handled = [
            self.block(handler.body, Frame(handler, "handler", frame, frame.function), class_name) for handler in node.handlers
        ]
        leaves |= self.block(node.orelse, Frame(node, "orelse", frame, frame.function), class_name)
        return self.block(node.finalbody, Frame(node, "finalbody", frame, frame.function), class_name) or (
            leaves and all(handled)
        )

    def loop(self, node: LoopNode, frame: Frame, class_name: str) -> None:
        frame.function.loops.append((node, frame))
        if not isinstance(node, ast.While):
            frame.function.taken.append((node.target, node.iter))
        self.block(node.body, Frame(node, "body", frame, frame.function), class_name)
        self.block(node.orelse, Frame(node, "orelse", frame, frame.function), class_name)

    def assign(self, target: ast.expr, value: ast.expr, frame: Frame, class_name: str) -> None:
        if isinstance(target, ast.Name):
            shared = target.id in frame.function.shared
            (self.module.top if shared else frame.function).assigned[target.id].append(value)
            if class_name:
                self.module.fields[class_name, target.id].append(value)
        elif isinstance(target, ast.Attribute):
            self.module.attributes[target.attr].append(value)
            if isinstance(target.value, ast.Attribute) and target.value.attr == "state":
                self.module.states.append((target.attr, value, frame.function.number))
            owner = next((f.class_name for f in frame.function.around() if f.class_name), "")
            if owner and isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"}:
                self.module.fields[owner, target.attr].append(value)
        elif not isinstance(target, ast.Subscript):
            self.bind(target, frame)

    def bind(self, target: ast.AST, frame: Frame) -> None:
        """Note the names that a target, or the pattern of a case, gives a value."""
        for node in (target,) if isinstance(target, ast.Name) else walk(target):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "rest", None) or getattr(node, "name", None)
            if isinstance(name, str):
                frame.function.bound.add(name)

    def expression(self, root: ast.AST, frame: Frame, statement: ast.stmt) -> None:
        """Record the names, calls, awaits and yields below `root`."""
        if root.__class__ is ast.Constant:
            return
        module, function = self.module, frame.function
        stack: list[Any] = [root]
        used: set[str] = set()
        names, bound = module.names[id(statement)], function.bound
        while stack:
            node = stack.pop()
            kind = node.__class__
            if kind is Name:
                (used if node.ctx.__class__ is ast.Load else bound).add(node.id)
            elif kind is ast.Constant:
                continue
            elif kind is Attribute:
                owner = node.value
                if owner.__class__ is Name and owner.id == "self":
                    names.add("self." + node.attr)
                stack.append(owner)
            elif kind is ast.Call:
                called = node.func
                site = Site(node, module.dotted(called), frame, statement)
                function.calls.append(site)
                module._sites[id(node)] = site  # noqa: SLF001 - the walk fills the module
                stack.append(called)
                stack += node.args
                if node.keywords:
                    stack += [k.value for k in node.keywords]
            elif kind is ast.Lambda:
                self.expression(node.body, self.enter(node, frame, ""), statement)
            else:
                if kind is ast.Await:
                    self.awaited.add(id(node.value))
                    function.awaited.update(awaited_names(node.value))
                elif kind is ast.Yield or kind is ast.YieldFrom:
                    function.yields.append(frame)
                elif kind in _COMPREHENSIONS:
                    function.taken += [(part.target, part.iter) for part in node.generators]
                    if kind is not ast.GeneratorExp:
                        function.comprehensions += node.generators
                stack += children(node)
        function.used |= used
        names |= used
