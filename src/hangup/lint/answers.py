"""Which calls of a handler have no part in what it returns: the client does not wait for what they compute.

A webhook answers `{"status": "ok"}`, whatever the model said; an import stores what is generated and returns a number. Names
are followed backwards from the returned values, through assignments, loops and statements that name several things.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from hangup.lint.walking import children, statements_in, walk

_BUILTINS = frozenset(dir(builtins))
_LOGS = frozenset("debug info warning warn error exception critical log print".split())
_STREAMS = frozenset({"StreamingResponse", "EventSourceResponse", "StreamingHttpResponse"})
_ABOUT = re.compile(
    r"(^|_)(id|ids|status|success|count|url|link|path|created_at|updated_at|type|kind|level|language|version|hash|length|duration"
    r"|created|indexed|inserted|updated|deleted|processed|saved|stored)$|^(num|total)_",
    re.I,
)
_ID = re.compile(r"(^|_)ids?$", re.I)
_NAMES = frozenset({"title", "name", "slug"})  # of what was made, beside its id
_NOTES = frozenset({"message", "msg", "detail"})
_HANDS_OVER = re.compile(r"append|extend|update|insert|put|send|emit|write|set|push|yield|publish|message", re.I)
_PAGES = re.compile(r"redirect|render", re.I)  # the browser loads a page, which may hold the answer
_REDIRECTS = frozenset({"redirect", "HttpResponseRedirect", "HttpResponsePermanentRedirect", "RedirectResponse"})
_RENDERS = frozenset({"render", "render_template"})
_SHOWN = frozenset({"request", "session", "flash", "messages"})  # what the next page shows, besides what it is given
_FIXED = frozenset("len str int float bool dict list range round".split())
_OF_REQUEST = frozenset("get getlist get_json strip lower upper".split())
PREVIEW_MIN = 30  # characters
_Handler = ast.FunctionDef | ast.AsyncFunctionDef
_After = dict[int, frozenset[ast.Return]]  # id of a statement -> the returns that may follow it
_Scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class _Flow(NamedTuple):
    """A statement that changes some names from others, and the calls in which it does."""

    statement: ast.stmt
    changed: set[str]
    names: set[str]
    calls: set[int]


def calls_outside_answer(handler: _Handler, *, walrus: bool = True) -> set[int]:
    """Return the ids of the calls whose results do not reach what the handler returns, as far as names show it.

    What counts for a call is what may be returned after it, not what another branch returns. `walrus` is whether the file has
    any `:=`.
    """
    statements = list(statements_in(handler.body))
    looked_up = _looked_up(statements)
    made = {name for s in statements if isinstance(s, ast.Assign) for target in s.targets for name in _changed(target)}
    flows = [
        _flow(statement, *flow, asked=_asked(statement) & made, looked_up=looked_up)
        for statement in statements
        for flow in _flows(statement, walrus=walrus)
    ]
    after: _After = {}
    _returns_after(handler.body, frozenset(), after)
    together: dict[frozenset[ast.Return], set[int]] = defaultdict(set)
    for flow in flows:
        together[after[id(flow.statement)]] |= flow.calls
    found: set[int] = set()
    for returns, calls in together.items():
        if calls:
            found |= calls & _outside(returns, statements, flows, after)
    return found


def calls_kept(
    function: _Handler, returned: list[ast.expr], assigned: Mapping[str, list[ast.expr]], *, walrus: bool = True
) -> set[int]:
    """Return the ids of the calls in a function whose results it keeps: it returns a status, an id or a number.

    What it gives to its parameters, or to the instance, may be read there. Only functions that return plain values written
    on the spot, or in a dictionary that they fill, are looked at: the others pass something on.
    """
    if not returned or not all(isinstance(value, (ast.Dict, ast.Constant, ast.Tuple, ast.Name)) for value in returned):
        return set()  # as most
    names = {value.id for value in returned if isinstance(value, ast.Name)}
    made = {name: any(isinstance(value, ast.Dict) for value in assigned.get(name, ())) for name in names}
    made[""] = any(isinstance(value, ast.Dict) for value in returned)
    if not any(made.values()) or not all(_is_plain(value) or made.get(getattr(value, "id", "")) for value in returned):
        return set()
    statements = list(statements_in(function.body))
    given = function.args
    parameters = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    flows = [
        _flow(statement, *flow)
        for statement in statements
        for flow in _flows(statement, walrus=walrus)
        if not isinstance(statement, ast.Expr) or _hands_over(statement.value)
    ]
    flows = [
        flow._replace(names=_names(*_telling(flow.statement.value)))
        if isinstance(flow.statement, ast.Assign) and isinstance(flow.statement.targets[0], ast.Subscript)
        else flow
        for flow in flows
    ]
    live = _names(*(part for value in returned for part in _telling(value))) | parameters
    tests = {number for s in statements if isinstance(s, (ast.If, ast.While)) for number in _calls(s.test)}
    return tests | {number for flow in _unreached(flows, live) for number in flow.calls}


def _unreached(flows: list[_Flow], live: set[str]) -> list[_Flow]:
    """Return the flows that change nothing on which these names depend; the names grow by what they depend on."""
    quiet = flows
    while reaching := [flow for flow in quiet if not flow.changed.isdisjoint(live)]:
        quiet = [flow for flow in quiet if flow.changed.isdisjoint(live)]
        live.update(*(flow.names for flow in reaching))
    return quiet


def _is_plain(value: ast.expr) -> bool:
    return isinstance(value, (ast.Dict, ast.Constant)) or (isinstance(value, ast.Tuple) and all(map(_is_plain, value.elts)))


def _hands_over(value: ast.expr) -> bool:
    """Return whether a statement gives something to who holds the receiver: out.append(text), await queue.put(text)."""
    call = value.value if isinstance(value, ast.Await) else value
    return not isinstance(call, ast.Call) or _HANDS_OVER.search(_name(call)) is not None


def _outside(returns: frozenset[ast.Return], statements: list[ast.stmt], flows: list[_Flow], after: _After) -> set[int]:
    """Return the calls that have no part in what is returned in these places."""
    returned = [s.value for s in returns if s.value is not None]
    made = [node for value in returned for node in walk(value) if isinstance(node, ast.Call)]
    if any(_PAGES.search(_name(call)) for call in made):
        return _outside_page(returns, made, statements, [flow for flow in flows if after[id(flow.statement)] & returns], after)
    quiet = flows
    if not all(_is_bare(value) for value in returned):
        live = _names(
            *(part for value in returned for part in _telling(value)),
            *(test for s in statements if (test := _deciding(s, returns)) is not None),
        )
        quiet = _unreached(flows, live)
    return {number for flow in quiet for number in flow.calls}


def _outside_page(
    returns: frozenset[ast.Return], made: list[ast.Call], statements: list[ast.stmt], flows: list[_Flow], after: _After
) -> set[int]:
    """Return the calls that have no part in a page that the browser loads: a redirect says nothing but where it is.

    A page that is rendered may show what was stored meanwhile, unless nothing that it is given comes from a call.
    """
    pages = {name for call in made if _PAGES.search(name := _name(call))}
    own = [flow.statement for flow in flows if flow.calls and after[id(flow.statement)] == returns]
    if not pages <= _REDIRECTS | _RENDERS or not own:
        return set()
    first = min(statement.lineno for statement in own)
    tests = [
        test
        for s in statements
        if (test := _deciding(s, returns)) is not None and (test.lineno >= first or _loops_over(statements, test.lineno, first))
    ]
    live = {*_SHOWN, *_names(*tests)}
    for value in (s.value for s in returns if s.value is not None):
        live |= {name for name in _names(*_telling(value)) if not _ABOUT.search(name) or not pages <= _REDIRECTS}
    quiet = _unreached(flows, live)
    if not pages <= _REDIRECTS:
        shown = {number for flow in flows if flow not in quiet for number in flow.calls}
        called = [n for flow in flows for n in walk(flow.statement) if id(n) in shown and isinstance(n, ast.Call)]
        if not all(_name(call) in _RENDERS or _is_of_request(call) for call in (*made, *called)):
            return set()
    return {number for flow in quiet for number in flow.calls}


def _is_of_request(call: ast.Call) -> bool:
    """Return whether a call says nothing but what the client sent: request.POST.get("topic"), int(page)."""
    root: ast.AST = call.func
    if isinstance(root, ast.Name):
        return root.id in _FIXED
    while isinstance(root, (ast.Attribute, ast.Call)):
        root = root.func if isinstance(root, ast.Call) else root.value
    return isinstance(root, ast.Name) and root.id == "request" and _name(call) in _OF_REQUEST


def _loops_over(statements: list[ast.stmt], one: int, other: int) -> bool:
    """Return whether a loop holds both lines, so that the first may be run after the second."""
    loops = (s for s in statements if isinstance(s, (ast.For, ast.AsyncFor, ast.While)))
    return any(s.lineno <= one and other <= (s.end_lineno or s.lineno) for s in loops)


def _looked_up(statements: list[ast.stmt]) -> set[str]:
    """Return the names of ids by which what is returned is looked up: `return store.emails(email_ids)`."""
    returned = [node for s in statements if isinstance(s, ast.Return) and s.value is not None for node in walk(s.value)]
    given = [a for node in returned if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) for a in node.args]
    return {node.id for node in given if isinstance(node, ast.Name) and node.id.endswith("ids")}


def _asked(statement: ast.stmt) -> set[str]:
    """Return the name of what an assignment asks for its value, and so may change: `number = shop.restock(text)`."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    call = value.value if isinstance(value, ast.Await) else value
    return set(_changed(call.func)) if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else set()


def _flow(
    statement: ast.stmt, changed: set[str], source: ast.AST, *, asked: Collection[str] = (), looked_up: Collection[str] = ()
) -> _Flow:
    names: set[str] = set()
    calls: set[int] = set()
    for node in walk(source):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Call):
            calls.add(id(node))
    about = isinstance(statement, ast.Assign) and all(_ABOUT.search(name) and name not in looked_up for name in changed)
    if about and not _has_slice(source):
        names = set()  # `status = store(text)` tells nothing of the text, `output_ids = made[0][length:]` are its tokens
    return _Flow(statement, changed.union(asked), names - _BUILTINS, calls)


def _has_slice(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Slice) for part in walk(node))


def _returns_after(body: list[ast.stmt], tail: frozenset[ast.Return], after: _After) -> frozenset[ast.Return]:
    """Note for each statement which returns may follow it, and return those that may follow the beginning of `body`."""
    for statement in reversed(body):
        match statement:
            case ast.Return():
                tail = frozenset({statement})
            case ast.Raise():
                tail = frozenset()
            case ast.If():
                tail = _returns_after(statement.body, tail, after) | _returns_after(statement.orelse, tail, after)
            case ast.For() | ast.AsyncFor() | ast.While():
                again = tail | {s for s in walk(statement) if isinstance(s, ast.Return)}
                tail = _returns_after(statement.body, again, after) | _returns_after(statement.orelse, tail, after)
            case ast.With() | ast.AsyncWith():
                tail = _returns_after(statement.body, tail, after)
            case ast.Try() | ast.TryStar():
                last = _returns_after(statement.finalbody, tail, after)
                caught = frozenset[ast.Return]().union(*(_returns_after(h.body, last, after) for h in statement.handlers))
                tail = _returns_after(statement.body, _returns_after(statement.orelse, last, after) | caught, after) | caught
            case ast.Match():
                tail = tail.union(*(_returns_after(case.body, tail, after) for case in statement.cases))
        after[id(statement)] = tail
    return tail


def _flows(statement: ast.stmt, *, walrus: bool) -> Iterator[tuple[set[str], ast.AST]]:
    """Yield what a statement changes, and from what."""
    match statement:
        case ast.Assign():
            yield {name for target in statement.targets for name in _changed(target)}, statement.value
        case ast.AnnAssign() | ast.AugAssign() if statement.value is not None:
            yield set(_changed(statement.target)), statement.value
        case ast.For() | ast.AsyncFor():
            yield set(_changed(statement.target)), statement.iter
        case ast.With() | ast.AsyncWith():
            for item in statement.items:
                if item.optional_vars is not None:
                    yield set(_changed(item.optional_vars)), item.context_expr
                    yield _given(item.context_expr), item.optional_vars
        case ast.Expr() if not _is_log(statement.value):  # it may change anything that it names
            yield _names(statement.value), statement.value
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield {statement.name}, statement
    for node in walk(statement) if walrus and not isinstance(statement, _Scopes) else ():
        if isinstance(node, ast.NamedExpr):
            yield {node.target.id}, node.value


def _given(entered: ast.expr) -> set[str]:
    """Return what a block may fill: `buffer` in `with ZipFile(buffer, "w") as archive`, but no file by its name."""
    given = entered.args if isinstance(entered, ast.Call) and _name(entered) != "open" else ()
    return {node.id for node in given if isinstance(node, ast.Name)}


def _is_log(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _name(node) in _LOGS


def calls_for_stream(handler: _Handler) -> set[int]:
    """Return the ids of the calls in branches for clients that want a stream: `if body.stream: return StreamingResponse()`."""
    found: set[int] = set()
    for statement in statements_in(handler.body):
        if isinstance(statement, ast.If) and _asks_for_stream(statement.test) and _returns_stream(statement.body):
            found.update(number for inner in statement.body for number in _calls(inner))
    return found


def _asks_for_stream(test: ast.expr) -> bool:
    if any(isinstance(node, ast.Not) for node in walk(test)):
        return False
    words = (getattr(n, "id", None) or getattr(n, "attr", None) or getattr(n, "value", None) for n in walk(test))
    return any(isinstance(word, str) and "stream" in word.lower() for word in words)


def _returns_stream(body: list[ast.stmt]) -> bool:
    """Return whether a branch ends with a streaming response, which a function inside it may make."""
    if not any(isinstance(s, ast.Return) for s in body):
        return False
    return any(isinstance(n, ast.Call) and _name(n) in _STREAMS for s in body for n in walk(s))


def _telling(value: ast.AST) -> Iterator[ast.AST]:
    """Yield the names in a returned value that may stand for what is generated: not for its length, beginning, id or link."""
    todo = [value]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            yield node
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            todo.extend(_of_comprehension(node))
        elif isinstance(node, ast.Dict):
            words = [key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else "" for key in node.keys]
            todo.extend(_of_record(list(zip(words, node.values, strict=True))))
        elif isinstance(node, ast.Call) and _name(node)[:1].isupper():
            todo.extend([node.func, *node.args, *_of_record([(k.arg or "", k.value) for k in node.keywords])])
        elif not _is_about(node):
            todo.extend(children(node))


def _of_record(fields: list[tuple[str, ast.expr]]) -> Iterator[ast.AST]:
    """Yield the values of a record's fields that may hold what is generated: no id, no number, no note that it is done."""
    made = any(_ID.search(name) for name, _ in fields)
    for name, value in fields:
        note = name in _NOTES and isinstance(value, ast.JoinedStr)
        if not (note or _ABOUT.search(name) or (made and name in _NAMES)):
            yield value


def _of_comprehension(node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Iterator[ast.AST]:
    """Yield what is telling in `[quiz.id for quiz in made]`: nothing, since only ids of what was made are in it."""
    own = {name for part in node.generators for name in _changed(part.target)}
    telling = {name.id for name in _telling(node.elt) if isinstance(name, ast.Name)}
    yield from (ast.Name(name) for name in telling - own)
    if telling & own:
        yield from (part.iter for part in node.generators)


def _is_about(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="len")):
            return True
        case ast.Subscript(slice=ast.Slice(lower=None, upper=ast.Constant(value=int(length)))):
            return length >= PREVIEW_MIN  # of a text; lines[:3] are the answer
        case ast.Attribute(attr=key) | ast.Subscript(slice=ast.Constant(value=str(key))):
            return _ABOUT.search(key) is not None
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
            return _ABOUT.search(key) is not None
    return False


def _changed(target: ast.expr) -> Iterator[str]:
    """Yield the names that an assignment changes: `state` for state["answer"].text."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _changed(item)
        return
    while isinstance(target, (ast.Attribute, ast.Subscript, ast.Starred, ast.Call)):
        target = target.func if isinstance(target, ast.Call) else target.value
    if isinstance(target, ast.Name):
        yield target.id


def _deciding(statement: ast.stmt, returns: frozenset[ast.Return]) -> ast.expr | None:
    """Return the condition that decides whether the handler returns here."""
    if not isinstance(statement, (ast.If, ast.While, ast.Match)):
        return None
    last = statement.end_lineno or 0
    if any(statement.lineno <= s.lineno <= last for s in returns):
        return statement.subject if isinstance(statement, ast.Match) else statement.test
    return None


def _names(*nodes: ast.AST) -> set[str]:
    return {n.id for node in nodes for n in walk(node) if isinstance(n, ast.Name)} - _BUILTINS


def _calls(node: ast.AST) -> Iterator[int]:
    return (id(inner) for inner in walk(node) if isinstance(inner, ast.Call))


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def _is_bare(value: ast.expr) -> bool:
    """Return whether a returned value holds no data: {"status": "ok"}, Response(status_code=200), ("", 204)."""
    match value:
        case ast.Constant():
            return True
        case ast.Dict():
            return all(_is_bare(item) for item in value.values)
        case ast.Tuple() | ast.List():
            return all(_is_bare(item) for item in value.elts)
        case ast.Name():
            return value.id.isupper()
        case ast.Attribute():
            return value.attr.isupper()
        case ast.Call(func=ast.Name() | ast.Attribute()):
            given = [*value.args, *(k.value for k in value.keywords)]
            plain = isinstance(value.func, ast.Name) or _name(value)[:1].isupper()
            return plain and bool(given) and all(_is_bare(item) for item in given)
    return False
