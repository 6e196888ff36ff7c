"""Names that are defined nowhere: what uses one raises NameError, and nothing after it is run.

Only what is certain counts: the name is none of the file's, in no function around, and the file makes no names when it runs;
and it is evaluated whenever what follows would be. Conditions, loops and `try` are followed for that.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable

from hangup.lint.source import Function, Module
from hangup.lint.walking import children, walk

# Besides those of this Python: of other versions and systems, and what notebooks, gettext and profilers add to them.
_KNOWN = frozenset(dir(builtins)) | frozenset(
    "_ _n ngettext gettext get_ipython display dbutils spark sc profile reveal_type reveal_locals copyright credits exit quit"
    " WindowsError PythonFinalizationError".split()
)
_MAKING = ("globals(", "exec(", "vars(", "builtins")
_MAKES_NAMES = re.compile(r"(?<![.\w])(?:globals|exec|vars)\(|\b(?:__)?builtins(?:__)?[ \t]*[.,\[]")
# Those of Python that a NameError is none of; a name that is not here may stand for one that it is.
_OTHER_ERRORS = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException) and not issubclass(NameError, value)
) - {"UnboundLocalError"}
Unreached = dict[int, str]  # id of a call -> the undefined name that is evaluated before


def unreached_calls(module: Module) -> tuple[Unreached, str]:
    """Return the calls of a file that an undefined name always comes before, and the one that ends its import, if any does."""
    unreached: Unreached = {}
    ending = ""
    for function, names in _undefined(module):
        node = function.node
        order = _Order(names, unreached)
        if isinstance(node, ast.Lambda):
            order.evaluate(node.body, "")
        else:
            stop = order.block(getattr(node, "body", []), "")
            ending = stop if function is module.top else ending
    return unreached, ending


def _undefined(module: Module) -> Iterable[tuple[Function, set[str]]]:
    """Yield the functions that use names that are defined nowhere, with these."""
    text, top = module.text, module.top
    if any(name[0] == "*" for name in module.imports):
        return
    known = {*_KNOWN, *top.bound, *top.assigned}
    found: list[tuple[Function, set[str]]] = []
    for function in module.functions:
        names = function.used - known
        for scope in function.around() if names else ():
            names -= scope.bound
            names -= scope.assigned.keys()
            names -= _parameters(scope.node)
            if not names:
                break
        if names := {name for name in names if not name.startswith("__")}:
            found.append((function, names))
    if found and not (any(word in text for word in _MAKING) and _MAKES_NAMES.search(text)):
        yield from found


def _parameters(node: ast.AST) -> set[str]:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return set()
    given = node.args
    rest = [a for a in (given.vararg, given.kwarg) if a is not None]
    return {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)}


class _Order:
    """Goes through a function in the order in which it is evaluated; notes the calls that come after an undefined name.

    Everywhere, `stop` is the name that was evaluated before, or "", and what is returned is the same for what follows.
    """

    def __init__(self, names: set[str], unreached: Unreached) -> None:
        self.names = names
        self.unreached = unreached

    def mark(self, node: ast.AST, stop: str) -> None:
        for inner in walk(node):
            if isinstance(inner, ast.Call):
                self.unreached[id(inner)] = stop

    def block(self, body: list[ast.stmt], stop: str) -> str:
        for statement in body:
            if stop:
                self.mark(statement, stop)
            else:
                stop = self.statement(statement)
        return stop

    def statement(self, node: ast.stmt) -> str:
        match node:
            case ast.If():
                stop = self.evaluate(node.test, "")
                branches = [self.block(body, stop) for body in (node.body, node.orelse)]
                return branches[0] if all(branches) else ""
            case ast.For() | ast.AsyncFor():
                stop = self.evaluate(node.iter, "")
                self.block(node.body, stop)
                self.block(node.orelse, stop)
                return stop
            case ast.While():
                stop = self.evaluate(node.test, "")
                self.block(node.body, stop)
                self.block(node.orelse, stop)
                return stop
            case ast.With() | ast.AsyncWith():
                stop = self.all(item.context_expr for item in node.items)
                self.block(node.body, stop)
                return stop  # what is raised inside, it may suppress
            case ast.Try() | ast.TryStar():
                return self.attempt(node)
            case ast.Match():
                stop = self.evaluate(node.subject, "")
                for case in node.cases:
                    self.block(case.body, self.evaluate(case.guard, stop))
                return stop
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                stop = self.all((*node.decorator_list, *node.args.defaults, *node.args.kw_defaults))
                if stop:
                    self.mark(node, stop)
                return stop
            case ast.ClassDef():
                return self.block(node.body, self.all(node.decorator_list))
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                return self.evaluate(node.value, "")
            case ast.Assert():
                return self.evaluate(node.test, "")
            case ast.Expr() | ast.Return():
                return self.evaluate(node.value, "")
            case ast.Raise():
                return self.all((node.exc, node.cause))
        return ""

    def attempt(self, node: ast.Try | ast.TryStar) -> str:
        stop = self.block(node.body, "")
        self.block(node.orelse, stop)
        passes_on = [
            bool(self.block(handler.body, "")) or _leaves(handler.body) or not _may_catch(handler.type)
            for handler in node.handlers
        ]
        last = self.block(node.finalbody, "")
        return last or (stop if all(passes_on) else "")

    def all(self, nodes: Iterable[ast.AST | None], stop: str = "") -> str:
        for node in nodes:
            stop = self.evaluate(node, stop)
        return stop

    def evaluate(self, node: ast.AST | None, stop: str) -> str:
        while node.__class__ is ast.Attribute:  # the most, as are constants
            node = node.value
        if node.__class__ is ast.Constant:
            return stop
        match node:
            case None:
                return stop
            case ast.Name():
                return stop or (node.id if node.id in self.names and isinstance(node.ctx, ast.Load) else "")
            case ast.Call():
                stop = self.all((node.func, *node.args, *(k.value for k in node.keywords)), stop)
                if stop:
                    self.unreached[id(node)] = stop
                return stop
            case ast.Lambda():
                stop = self.all((*node.args.defaults, *node.args.kw_defaults), stop)
                if stop:
                    self.mark(node, stop)
                return stop
            case ast.BoolOp():
                stop = self.evaluate(node.values[0], stop)
                self.all(node.values[1:], stop)
                return stop
            case ast.IfExp():
                stop = self.evaluate(node.test, stop)
                branches = [self.evaluate(branch, stop) for branch in (node.body, node.orelse)]
                return branches[0] if all(branches) else ""
            case ast.Compare():
                stop = self.all((node.left, node.comparators[0]), stop)
                self.all(node.comparators[1:], stop)
                return stop
            case ast.Dict():
                return self.all((part for pair in zip(node.keys, node.values, strict=True) for part in pair), stop)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return self.comprehension(node, stop)
        return self.all(children(node), stop)

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, stop: str) -> str:
        """Follow a comprehension; without an element, only what it iterates over is evaluated."""
        stop = self.evaluate(node.generators[0].iter, stop)
        inside = self.all(node.generators[0].ifs, stop)
        for generator in node.generators[1:]:
            inside = self.all((generator.iter, *generator.ifs), inside)
        self.all((node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,), inside)
        return stop


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], (ast.Return, ast.Raise))


def _may_catch(caught: ast.expr | None) -> bool:
    """Return whether what is caught may be a NameError."""
    match caught:
        case ast.Name():
            return caught.id not in _OTHER_ERRORS
        case ast.Tuple():
            return any(_may_catch(item) for item in caught.elts)
    return True
