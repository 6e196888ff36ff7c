"""Writes parts of the syntax tree as short text: references to what a name may stand for, and places."""

from __future__ import annotations

import ast
import re
from ast import Attribute, Call, Constant, Name
from functools import cache

from hangup.lint.facts import Place

# What a parameter of one of these types is, the type in its brackets tells; a class stands for what it makes.
_WRAPPERS = frozenset({"Optional", "Annotated", "Final", "ClassVar", "type", "Type"})
# Of these, only an element or a call has the type in the brackets.
_CONTAINERS = frozenset(
    "list List dict Dict set Set frozenset FrozenSet tuple Tuple Sequence Iterable Iterator AsyncIterator AsyncIterable"
    " Generator AsyncGenerator Callable Awaitable Coroutine Mapping MutableMapping Collection Deque deque defaultdict"
    " DefaultDict Union Literal Queue".split()
)


def reference(node: ast.AST | None) -> str:
    """Return `a.b`, `a.b()` or `a[].b` for names, calls and subscripts, also by getattr(); "" for anything else."""
    if isinstance(node, Constant):
        return ""
    parts: list[str] = []
    while True:
        if isinstance(node, Attribute):
            parts.append("." + node.attr)
            node = node.value
        elif isinstance(node, Name):
            if not parts:
                return node.id
            parts.append(node.id)
            parts.reverse()
            return "".join(parts)
        elif isinstance(node, Call):
            if isinstance(node.func, Name) and node.func.id == "getattr" and (name := _asked_for(node)):
                parts.append("." + name)
                node = node.args[0]
            else:
                parts.append("()")
                node = node.func
        elif isinstance(node, ast.Subscript):
            parts.append("[]")
            node = node.value
        elif isinstance(node, ast.Await):
            node = node.value
        else:
            return ""


def _asked_for(call: Call) -> str:
    """Return the attribute in getattr(app.state, "pipeline", None), which is app.state.pipeline."""
    name = call.args[1].value if len(call.args) > 1 and isinstance(call.args[1], Constant) else ""
    return name if isinstance(name, str) else ""


def annotation(node: ast.AST | None) -> str:
    """Return the class that an annotation names: Service for Service, Optional[Service], Service | None and "Service".

    type[Service] and Service[Request] name it as well.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.strip() if node.value.replace(".", "").isidentifier() else ""
    if isinstance(node, ast.BinOp):
        return annotation(node.left) or annotation(node.right)
    if isinstance(node, ast.Subscript):
        name = reference(node.value).rpartition(".")[2]
        if name in _WRAPPERS:
            inner = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
            return annotation(inner)
        return "" if name in _CONTAINERS else annotation(node.value)
    if isinstance(node, (ast.Name, ast.Attribute)):
        ref = reference(node)
        return "" if ref in {"str", "int", "dict", "list", "bool", "float", "Any", "None", "bytes", "object"} else ref
    return ""


def places(node: ast.AST) -> Place:
    """Return where a node is, and the last line on which a comment counts for it: for a block, the line before its body."""
    line, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or 1
    body = getattr(node, "body", None)
    comment = max(line, int(body[0].lineno) - 1) if isinstance(body, list) and body else last
    return line, getattr(node, "col_offset", 0) + 1, last, comment


_INNER_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # of RagService, RAGPipeline
_FILLERS = frozenset(
    {"", "self", "service", "client", "manager", "handler", "base", "the", "app", "state", "request", "instance", "get"}
)


@cache
def words_in(name: str) -> frozenset[str]:
    """Return the words of a reference's last part that say something: {"rag", "query"} for self.rag_query_service."""
    last = re.sub(r"\(\)|\[\]", "", name).rpartition(".")[2]
    return frozenset(_INNER_CAPITAL.sub("_", last).lower().split("_")) - _FILLERS


def last_name(node: ast.expr) -> str:
    """Return the name itself, or that of an attribute without its owner."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
