"""Rules about cancellation that does not arrive: swallowed on its way, or blocked by a shield."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hangup.lint.finding import Severity
from hangup.lint.rule import Hit, rule
from hangup.lint.source import Frame, Function, Module
from hangup.lint.vocabulary import Inference

_ENDS = re.compile(
    r"close|__aexit__|cancel|stop|terminate|disconnect|shutdown|cleanup|shield|release|kill|rollback|pause|delete|remove", re.I
)


@rule(
    "HU008",
    "cancellation-eaten",
    Severity.ERROR,
    summary="An except clause swallows `CancelledError`, so the work continues.",
    why="""A hang-up reaches a coroutine as CancelledError. A bare `except`, `except BaseException`, or an `except
    CancelledError` after which the function continues swallows it, so the generation does not stop. (`except Exception`
    alone is harmless since Python 3.8.)""",
    hint="re-raise after cleaning up: `except asyncio.CancelledError: ...; raise`",
    bad="""
        async def answer(engine, prompt):
            try:
                return await engine.generate(prompt)
            except BaseException:
                return "sorry"
        """,
    good="""
        async def answer(engine, prompt):
            try:
                return await engine.generate(prompt)
            except Exception:
                return "sorry"
        """,
)
def cancellation_eaten(module: Module) -> Iterator[Hit]:
    for function in module.functions:
        if not function.is_async or _is_cleanup(function):
            continue
        for node, frame in function.tries:
            if not any(_awaits(statement) for statement in node.body):
                continue
            for handler in node.handlers:
                caught = _caught(module, handler)
                if caught and not _passes_error_on(handler) and not _is_part_of_ending(module, function, node, frame):
                    if caught == "CancelledError" and not _awaits_more(handler, frame, node):
                        continue
                    yield handler, f"`except{_caught_text(handler)}` swallows the cancellation after a hang-up"
                if _caught(module, handler):
                    break  # later clauses no longer see it


def _is_cleanup(function: Function) -> bool:
    return bool(_ENDS.search(function.name)) or "best_effort" in function.name


def _caught(module: Module, handler: ast.ExceptHandler) -> str:
    """Return which clause catches a CancelledError: "CancelledError", "BaseException", or "" for none."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {module.dotted(kind).rpartition(".")[2] if kind is not None else "BaseException" for kind in kinds}
    return next((name for name in ("BaseException", "CancelledError") if name in names), "")


def _caught_text(handler: ast.ExceptHandler) -> str:
    return f" {ast.unparse(handler.type)}" if handler.type is not None else ":"


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of a block, without those of functions defined in it."""
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(node))


def _awaits(statement: ast.stmt) -> bool:
    return any(isinstance(n, (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield)) for n in _own_nodes([statement]))


def _passes_error_on(handler: ast.ExceptHandler) -> bool:
    """Return whether the clause re-raises the error or passes it on as an object."""
    for node in _own_nodes(handler.body):
        if isinstance(node, ast.Raise):
            return True
        if handler.name and isinstance(node, ast.Call) and _is_passed_on(node, handler.name):
            return True
        if handler.name and isinstance(node, (ast.Assign, ast.Return, ast.AnnAssign)) and _stores(node.value, handler.name):
            return True
        if isinstance(node, ast.Attribute) and node.attr in {"uncancel", "_exit", "exit"}:
            return True  # the author has handled it
    return False


def _stores(value: ast.expr | None, name: str) -> bool:
    """Return whether `error = exc` or `error = error or exc` stores the error itself, not only its text."""
    parts = value.values if isinstance(value, ast.BoolOp) else [value]
    return any(_is_name(part, name) for part in parts)


def _is_passed_on(call: ast.Call, name: str) -> bool:
    verb = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    takes = any(_is_name(a, name) for a in (*call.args, *(k.value for k in call.keywords)))
    return takes and verb not in {
        "print",
        "str",
        "repr",
        "debug",
        "info",
        "warning",
        "error",
        "exception",
        "critical",
        "type",
        "format_exception",
    }


def _is_name(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_part_of_ending(module: Module, function: Function, node: ast.Try, frame: Frame) -> bool:
    """Return whether the work is already over here: a close that must not fail, an awaited cancelled task, or a `finally`."""
    if any(outer.part == "finalbody" for outer in frame.outward()):
        return True
    awaited = [n.value for s in node.body for n in ast.walk(s) if isinstance(n, ast.Await)]
    if awaited and all(_ENDS.search(module.dotted(value)) for value in awaited):
        return True
    cancelled = any(site.name.endswith((".cancel", "cancel_all")) for site in function.calls)
    only_waits = all(isinstance(s, (ast.Expr, ast.Assign)) for s in node.body) and len(node.body) <= 2
    return cancelled and only_waits


def _awaits_more(handler: ast.ExceptHandler, frame: Frame, node: ast.Try) -> bool:
    """Return whether more is awaited after the clause: in the clause itself, after the try, or in the next loop iteration."""
    leaves = isinstance(handler.body[-1], (ast.Return, ast.Break, ast.Raise))
    if isinstance(handler.body[-1], ast.Return):
        return False
    for outer in frame.outward():
        if isinstance(outer.node, (ast.For, ast.AsyncFor, ast.While)):
            return not leaves
    after = [s for s in getattr(frame.node, "body", []) if s.lineno > (node.end_lineno or node.lineno)]
    return any(_awaits(s) for s in after)


@rule(
    "HU009",
    "inference-shielded",
    Severity.ERROR,
    summary="`asyncio.shield` (or a shielded cancel scope) around inference.",
    why="""A shield blocks cancellation: when the client disconnects, the caller is cancelled, but the generation inside
    runs to its end.""",
    hint="shield only the cleanup, never the generation",
    bad="""
        import asyncio

        async def answer(engine, prompt):
            return await asyncio.shield(engine.generate(prompt))
        """,
    good="""
        import asyncio

        async def answer(engine, prompt):
            try:
                return await engine.generate(prompt)
            finally:
                await asyncio.shield(engine.release(prompt))
        """,
)
def inference_shielded(module: Module) -> Iterator[Hit]:
    inference = Inference.of(module)
    if not inference:
        return
    for site in module.calls():
        if site.name == "asyncio.shield" and site.node.args:
            inner = next(inference.within(_shielded(module, site.node.args[0], site.function)), None)
            if inner is not None:
                yield site.node, f"the shield keeps `{inner.name}` running after the client disconnects"
        elif site.name.endswith("CancelScope") and _is_true(site.keyword("shield")) and isinstance(site.statement, ast.With):
            inner = next((i for s in site.statement.body for i in inference.within(s)), None)
            if inner is not None:
                yield site.node, f"the scope keeps `{inner.name}` running after the client disconnects"


def _shielded(module: Module, node: ast.expr, function: Function) -> ast.AST:
    """Return what the shield protects: the call itself, or the task that was assigned to the name."""
    if isinstance(node, ast.Name):
        values = module.values_of(node, function)
        return values[-1] if values else node
    return node


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
