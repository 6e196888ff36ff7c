"""Turns a file's syntax tree into its facts."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Container

from hangup.lint import spawns, vocabulary, waiting
from hangup.lint.answers import calls_for_stream, calls_kept, calls_outside_answer
from hangup.lint.awaiting import WAITING
from hangup.lint.broken import made_at_import, positional, raises_from, required
from hangup.lint.called import called_names
from hangup.lint.facts import UNKNOWN, CallFacts, ClassFacts, FileFacts, FunctionFacts, Local
from hangup.lint.failing import imports_in
from hangup.lint.guards import Guards, defaults, flags, is_decided, texts
from hangup.lint.handlers import REGISTERING, framework_of, handler, registered_path, registration, route_path, routes_of
from hangup.lint.http_calls import forwards as forwards_request
from hangup.lint.http_calls import gives_generation
from hangup.lint.passing import lost_calls
from hangup.lint.purposes import is_storing
from hangup.lint.source import Function as Scope
from hangup.lint.source import Module, Site
from hangup.lint.text import annotation, last_name, places, reference
from hangup.lint.undefined import Unreached, unreached_calls
from hangup.lint.walking import walk

_STREAMS = frozenset(
    {"StreamingResponse", "EventSourceResponse", "StreamingHttpResponse", "ServerSentEvent", "Stream", "StreamResponse"}
)
_WATCHES = re.compile(
    r"is_disconnected|(with|until|on|for|if)_(client_)?disconnect|listen_for_disconnect|with_cancellation|http\.disconnect|run_until_disconnect|is_active\("
    r"|(context|ctx|request)\w*\.add_done_callback|context\.cancelled|on_connection_close"
)
_WATCHING_WORDS = (
    "disconnect",
    "with_cancellation",
    "is_active(",
    "add_done_callback",
    "context.cancelled",
    "on_connection_close",
)
_KEEPING_WORDS = ('"status"', "'status'", '"ok"', '"success"', "'ok'", "'success'", "_id", "_count", "count")
# What an assistant answers is read from its thread, not from the run that is waited for.
_ANSWERS_IN_THREAD = re.compile(r"\.runs\.(retrieve|poll|create_and_poll|submit_tool_outputs_and_poll)$|\.create_and_run_poll$")
_STARTING = frozenset({"create_task", "ensure_future", "to_thread", "run_in_executor"})  # what they are given runs apart
_WATCHING_DECORATORS = re.compile(r"cancel|disconnect|tether")
# Calls of these say nothing about inference and are by far the most.
_COMMON = frozenset(
    "append extend get items keys values format join split strip lower upper replace startswith endswith encode decode"
    " pop update"
    " info debug warning error exception critical log print len str int float bool list dict set tuple isinstance"
    " getattr setattr"
    " hasattr range enumerate zip map filter sorted min max sum any all open read write dumps loads sleep time now utcnow uuid4"
    " getenv exists mkdir Field HTTPException JSONResponse super type repr copy add remove insert index count sort"
    " reverse round abs"
    " raise_for_status model_dump model_dump_json model_validate perf_counter monotonic isoformat mean sum shape"
    " reshape to cuda cpu"
    " ValueError RuntimeError TypeError KeyError Exception ImportError Path dataclass cast getLogger".split()
)
_COPIES = frozenset({"copy.copy", "copy.deepcopy", "copy", "deepcopy"})
_AWAITING = ("asyncio.run", "asyncio.wait_for", ".run_until_complete")
_LEADING = vocabulary.MADE_VERBS | {"__anext__"}  # whatever defines them: inference, or the first chunk of a stream
_KEEPING = _COMMON - {"write"}
_PLAIN = _COMMON - {"get", "set", "map"}  # `router.get(...)(handler)` registers, `event.set()` ends something, `pool.map(ask)`


def extract(module: Module, defined: Container[str] | None = None) -> FileFacts:
    """Return the facts of a file.

    With `defined`, the names of all functions of the project, a call of anything else leads to none of them, so that it does
    not matter what is around it. Most calls are of other packages.
    """
    return _Extract(module, defined).run()


class _Extract:
    def __init__(self, module: Module, defined: Container[str] | None) -> None:
        self.module = module
        self.defined = defined
        self.passed_over: set[str] = set()
        self.facts = FileFacts(imports=module.imports)
        self.framework = framework_of(module)
        self.bases = {node.name: [reference(base) for base in node.bases] for node in module.classes}
        text = module.text
        looks = any(word in text for word in _WATCHING_WORDS)  # a search for words is much faster than one for the pattern
        lines = [text.count("\n", 0, found.start()) + 1 for found in _WATCHES.finditer(text)] if looks else []
        self.watching = [line for line in lines if not any(first <= line <= last for first, last in module.dead)]
        self.requests: set[str] = (
            set()
        )  # parameters of the function that are the framework's request, not the model of its body
        self.walrus = ":=" in text
        self.may_keep = any(word in text for word in _KEEPING_WORDS)
        self.uses: dict[int, tuple[str, str]] = {}  # id of a call -> use and into
        self.guards: Guards | None = None  # of the function, once asked for
        self.unreached: Unreached = {}
        self.lost: set[int] | None = None  # ids of calls in it whose results it passes on to nobody, once asked for
        self.routes: set[tuple[int, str]] = set()  # those of handlers so far, with the function around them
        self.unused: set[int] = set()  # numbers of functions that nothing calls

    def run(self) -> FileFacts:
        module, facts = self.module, self.facts
        for site in module.calls():
            self.note_arguments(site)
        self.unreached, facts.ending = unreached_calls(module)
        facts.undefined = sorted({*self.unreached.values(), facts.ending} - {""})
        self.unused = _unused_inside(module.functions)
        for scope in module.functions:
            self.function(scope)
        facts.passed_over = sorted(self.passed_over)
        attributes: dict[str, dict[str, list[str]]] = defaultdict(dict)
        for (owner, attr), values in module.fields.items():
            if refs := _references(values):
                attributes[owner][attr] = refs
        for node in module.classes:
            facts.classes.append(ClassFacts(node.name, self.bases[node.name], places(node), attributes[node.name]))
        facts.states = [(name, ref, number) for name, value, number in module.states for ref in _references([value])]
        facts.made = list(made_at_import(module))
        self.middlewares()
        return facts

    def note_arguments(self, site: Site) -> None:
        """Note for each call that is an argument of this one what becomes of it: awaited through gather(), or passed on."""
        if not site.node.args and not site.node.keywords:
            return
        last = site.name if site.name == "asyncio.run" else site.name.rpartition(".")[2]
        waits = site.awaited and last in WAITING
        arguments = site.node.args
        if site.node.keywords:
            arguments = [*arguments, *[k.value for k in site.node.keywords]]
        for argument in arguments:
            kind = argument.__class__
            if kind is ast.Constant or kind is ast.Name:
                continue
            if kind is ast.Call:
                given = "given" if site.awaited and last not in _STARTING else "argument"
                self.uses[id(argument)] = ("await" if waits else given, last)
            elif waits:
                for node in walk(argument):
                    if isinstance(node, ast.Call):
                        self.uses[id(node)] = ("await", last)
            elif kind is ast.Starred or kind is ast.GeneratorExp or kind is ast.ListComp:
                for node in walk(argument):
                    if isinstance(node, ast.Call):
                        self.uses[id(node)] = ("argument", last)

    def function(self, scope: Scope) -> None:
        node = scope.node
        outer = scope.outer.number if scope.outer is not None else -1
        made = FunctionFacts(scope.name, scope.class_name, outer, places(node) if scope.outer is not None else (1, 1, 1, 1))
        self.facts.functions.append(made)
        made.is_async, made.yields = scope.is_async, bool(scope.yields)
        made.assigned = {name: refs for name, values in scope.assigned.items() if (refs := _references(values))}
        for name, values in scope.assigned.items():
            if held := [item for value in values if value.__class__ is ast.Dict for item in value.values]:
                made.assigned[name + "[]"] = _references([item for item in held if isinstance(item, (ast.Name, ast.Attribute))])
        for name, written in scope.annotated.items():
            if given := annotation(written):
                made.assigned[name] = [given + "()", *made.assigned.get(name, ())]
        made.returned = _references(scope.returns)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.signature(made, scope, node)
        self.requests = {
            name for name, given in made.parameters.items() if given.rpartition(".")[2] in {"Request", "WebSocket"}
        }
        self.guards = None
        self.lost = None
        if scope.loops:
            made.endless = any(isinstance(loop, ast.While) and _is_true(loop.test) for loop, _ in scope.loops)
        if scope.loops or scope.comprehensions:
            loops = [*[loop for loop, _ in scope.loops if not isinstance(loop, ast.While)], *scope.comprehensions]
            made.loops = [ref for loop in loops if (ref := reference(loop.iter))]
            made.plain_loops = [ref for loop in loops if _is_plain(loop) and (ref := reference(loop.iter))]
        if not isinstance(node, ast.Lambda):
            made.imported = list(imports_in(getattr(node, "body", []), names=scope.outer is not None))
        self.calls(made, scope)
        if isinstance(node, ast.Lambda):
            made.returned = [reference(node.body)]
        self.returns(made, scope)
        spawns.more(self.module, scope, made)

    def calls(self, made: FunctionFacts, scope: Scope) -> None:
        """Note the calls of a function; if one of them may lead to inference, also which of them have no part in its answer."""
        last = raises_from(self.module, scope.node)
        used = scope.calls if scope.number not in self.unused else []
        sites = [site for site in used if not last or site.node.lineno <= last]
        noted = [(call, site) for site in sites if (call := self.call(made, site)) is not None]
        if self.guards is not None:
            made.choices = self.guards.choices
        if self.guards is not None or made.spawns:
            unanswered = self.outside_answer(made, scope)
            for call, site in noted if unanswered else ():
                call.unanswered = id(site.node) in unanswered and not _ANSWERS_IN_THREAD.search(site.name)
            made.stores = any(is_storing(site.name) for site in scope.calls)
        made.calls = [call for call, _ in noted]

    def outside_answer(self, made: FunctionFacts, scope: Scope) -> set[int]:
        node = scope.node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or made.yields:
            return set()
        if not _may_be_handler(made):
            if not self.may_keep or all(site.name.rpartition(".")[2] in _COMMON for site in scope.calls):
                return set()
            return calls_kept(node, scope.returns, scope.assigned, walrus=self.walrus)
        return calls_outside_answer(node, walrus=self.walrus) | calls_for_stream(node)

    def take_routes(self, made: FunctionFacts, scope: Scope) -> None:
        """Note what a handler is registered for; one whose paths and methods are all taken serves nobody."""
        routes = {(made.outer, route) for route in routes_of(scope)}
        if routes and routes <= self.routes:
            made.handler = made.route = ""
        self.routes |= routes

    def signature(self, made: FunctionFacts, scope: Scope, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        module = self.module
        made.abstract = all(isinstance(s, (ast.Pass, ast.Raise)) or _is_constant(s) for s in node.body)
        made.handler, made.route = handler(module, scope, self.framework, self.bases)
        made.receives = made.handler == "websocket" and bool(scope.class_name)  # a consumer is called with what was received
        made.path = route_path(scope)
        if made.route:
            self.take_routes(made, scope)
        if node.args.defaults or node.args.kw_defaults:
            made.without = defaults(node)
            made.flags = flags(node)
            made.texts = texts(node)
        made.required = required(node)
        made.decorated = any(reference(d) not in {"staticmethod", "classmethod"} for d in node.decorator_list)
        made.positional = positional(node, is_method=bool(scope.class_name))
        made.any_keyword = node.args.kwarg is not None
        values = dict(zip(reversed([a.arg for a in node.args.args]), reversed(node.args.defaults), strict=False))
        for parameter in scope.parameters:
            provided = _depends(values.get(parameter.arg)) or _annotated_depends(parameter.annotation)
            if provided:
                made.provided[parameter.arg] = provided
            made.parameters[parameter.arg] = annotation(parameter.annotation) or provided or _name(values.get(parameter.arg))
        if node.returns is not None and (given := annotation(node.returns)):
            made.returned.append(given + "()")
        names = [module.dotted(d) for d in node.decorator_list]
        made.watches = any(_WATCHING_DECORATORS.search(n) for n in names) or self.is_watched(node)

    def is_watched(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Return whether the text of a function looks for the disconnect; the file's text is searched only once."""
        return any(node.lineno <= line <= (node.end_lineno or 0) for line in self.watching)

    def call(self, made: FunctionFacts, site: Site) -> CallFacts | None:
        module = self.module
        last = site.name.rpartition(".")[2]
        if last in _PLAIN and not site.awaited:
            return None
        if last in _STREAMS or (last == "Response" and made.name):
            made.sends_stream |= last in _STREAMS or any(isinstance(a, ast.Call) for a in site.node.args[:1])
        if site.name.startswith("hangup."):
            made.watches = True
        if last == "is_disconnected" and not site.function.yields:
            self.facts.polls.append(places(site.node))
        made.receives |= last.startswith(("receive", "iter_"))
        if last in {"AppRunner", "run_app"} and _is_true(site.keyword("handler_cancellation")):
            self.facts.cancels_handlers = True
        spawned = len(made.spawns)
        spawns.spawn(module, site, last, made)
        for spawn in made.spawns[spawned:]:
            spawn.lost = self.loses(site)
            spawn.decided = is_decided(site)
            spawn.after = self.unreached.get(id(site.node), "")
        if last in REGISTERING:
            given, framework = registration(module, site, self.framework)
            if given is not None and (ref := reference(given)):
                self.facts.registered.append((ref, framework, site.function.number, registered_path(module, site)))
        if last in _COMMON:
            return None
        made_inside = vocabulary.given_method(module, site)
        verb, forwards = vocabulary.direct(module, made_inside or site), False
        ref = reference((made_inside if made_inside is not None and verb else site).node.func)
        if ref in {"anext", "next"} and site.node.args and (ref := reference(site.node.args[0])):
            ref += ".__anext__"
        if not verb and not ref:
            return None
        if not verb and forwards_request(module, site):
            verb, forwards = last, True
        leads = bool(verb) or len(made.spawns) > spawned or self.may_lead(made, ref)
        use, into = self.use(site) if leads or site.awaited else ("value", "")
        call = CallFacts(ref or site.name, places(site.node), use, into, forwards=forwards)
        if self.unreached:
            call.after = self.unreached.get(id(site.node), "")
        if self.requests:
            arguments = (*site.node.args, *[k.value for k in site.node.keywords])
            call.gives_request = any(isinstance(a, ast.Name) and a.id in self.requests for a in arguments)
        if not leads:
            return call
        call.body = not verb and gives_generation(module, site)
        call.stream = _asks_for_stream(site)
        if verb:
            self.note_inference(call, made_inside or site, verb)
            call.uncapped = vocabulary.uncapped(site)
        if self.guards is None:
            self.guards = Guards(module, site.function)
        self.guards.note(call, site)
        if _may_be_handler(made):
            call.drained = _is_drained(site, use)
        call.lost = self.loses(site)
        return call

    def note_inference(self, call: CallFacts, site: Site, verb: str) -> None:
        call.direct = verb
        call.stream = vocabulary.streams(self.module, site, verb)
        call.blocking = waiting.blocks(self.module, site, verb)
        call.brief = vocabulary.is_brief(site)
        if (call.use == "with" and call.blocking != 1) or waiting.is_poll(site, verb):
            call.use = "await"  # the function waits until the engine has finished

    def may_lead(self, made: FunctionFacts, ref: str) -> bool:
        """Return whether a call may run a function of the project, or inference if its receiver was made for that."""
        if self.defined is None or made.path or _may_be_handler(made):
            return True
        names = [name.removesuffix("()") for name in called_names(self.facts, made, ref)]
        if any(name in _LEADING or name in self.defined for name in names):
            return True
        self.passed_over.update(names)
        return False

    def loses(self, site: Site) -> bool:
        if self.lost is None:
            self.lost = lost_calls(site.function, self.module.names, walrus=self.walrus)
        return id(site.node) in self.lost

    def use(self, site: Site) -> tuple[str, str]:
        if site.awaited:
            return "await", ""
        if id(site.node) in self.uses:
            return self.uses[id(site.node)]
        if isinstance(site.function.node, ast.Lambda) and site.function.node.body is site.node:
            return "return", ""
        statement = site.statement
        if isinstance(statement, (ast.For, ast.AsyncFor)) and _contains(statement.iter, site.node):
            return "loop", "async for" if isinstance(statement, ast.AsyncFor) else ""
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            return "with", ""
        if isinstance(statement, ast.Return) and statement.value is site.node:
            return "return", ""
        return ("drop", "") if site.dropped else ("value", "")

    def returns(self, made: FunctionFacts, scope: Scope) -> None:
        """Note whether the function returns something else than a streaming response."""
        for value in scope.returns:
            name = self.module.dotted(value) if isinstance(value, (ast.Call, ast.Name, ast.Attribute)) else ""
            last = name.rpartition(".")[2]
            if last not in _STREAMS and not (isinstance(value, ast.Constant) and value.value is None):
                made.answers |= not re.search(r"error|jsonify_err", last, re.I)

    def middlewares(self) -> None:
        module = self.module
        for node in module.classes:
            if any(base.rpartition(".")[2] == "BaseHTTPMiddleware" for base in self.bases[node.name]):
                self.facts.middlewares.append(Local("HU010", places(node), node.name))
        for scope in module.functions:
            for decorator in scope.decorators:
                if (
                    isinstance(decorator, ast.Call)
                    and self.framework in {"fastapi", "starlette"}
                    and _is_http_middleware(module, decorator)
                ):
                    self.facts.middlewares.append(Local("HU010", places(decorator), scope.name))


def _is_plain(loop: ast.For | ast.AsyncFor | ast.comprehension) -> bool:
    return not isinstance(loop, ast.AsyncFor) and not (isinstance(loop, ast.comprehension) and loop.is_async)


def _is_drained(site: Site, use: str) -> bool:
    """Return whether a loop over what a call returns only keeps what it reads."""
    statement = site.statement
    if use != "loop" or not isinstance(statement, (ast.For, ast.AsyncFor)):
        return any(_contains(part.iter, site.node) for part in site.function.comprehensions)
    nodes = [node for inner in statement.body for node in walk(inner)]
    if any(isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)) for node in nodes):
        return False
    return all(last_name(node.func) in _KEEPING for node in nodes if isinstance(node, ast.Call))


def _may_be_handler(made: FunctionFacts) -> bool:
    return bool(made.handler or made.route) or next(iter(made.parameters), "") == "request"


def _unused_inside(functions: list[Scope]) -> set[int]:
    """Return the numbers of functions that are defined inside another one, which never names them, and of those inside them."""
    inner = [function for function in functions if function.outer is not None and function.outer.number]
    names: dict[int, Counter[str]] = defaultdict(Counter)  # number of a function -> names that it and those inside it use
    for function in {*inner, *(f.outer for f in inner if f.outer is not None)}:
        for around in function.around():
            names[around.number].update(function.used)
    unused: set[int] = set()
    for function in inner:
        outer = function.outer
        if outer is None or function.class_name or not function.name or function.decorators or function.name in outer.shared:
            continue
        used = names[outer.number]
        if outer.number in unused or (used[function.name] == names[function.number][function.name] and not used["locals"]):
            unused.add(function.number)
    return unused


def _is_http_middleware(module: Module, decorator: ast.Call) -> bool:
    first = decorator.args[0] if decorator.args else None
    return module.dotted(decorator.func).endswith(".middleware") and isinstance(first, ast.Constant) and first.value == "http"


def _asks_for_stream(site: Site) -> int:
    given = site.keyword("stream", "streaming")
    if given is None:
        return UNKNOWN if site.has_double_star else 0
    return int(bool(given.value)) if isinstance(given, ast.Constant) else UNKNOWN


def _references(values: list[ast.expr]) -> list[str]:
    """Return up to four references for the values that a name may stand for."""
    found: list[str] = []
    for value in values[:8]:
        for node in (
            (value.body, value.orelse)
            if isinstance(value, ast.IfExp)
            else value.values
            if isinstance(value, ast.BoolOp)
            else (value,)
        ):
            ref = reference(_uncast(node)) or annotation(node)
            if ref and ref not in found:
                found.append(ref)
    return found[:4]


def _uncast(node: ast.expr) -> ast.expr:
    """Return what `cast(Service, found)` returns, what `copy(service)` is a copy of, or what `asyncio.run(made())` awaits."""
    called = node.value if isinstance(node, ast.Await) else node
    if not isinstance(called, ast.Call) or not called.args:
        return node
    name, first = reference(called.func), called.args[0]
    if name in _COPIES and len(called.args) == 1:
        return first
    if name.rpartition(".")[2] == "cast" and len(called.args) > 1:
        return called.args[1]
    return first if isinstance(first, ast.Call) and name.endswith(_AWAITING) else node


def _depends(default: ast.expr | None) -> str:
    """Return the reference of what `Depends(get_service)` provides."""
    if isinstance(default, ast.Call) and reference(default.func).rpartition(".")[2] == "Depends" and default.args:
        return reference(default.args[0]) + "()"
    return ""


def _annotated_depends(node: ast.expr | None) -> str:
    """Return the same for `Annotated[Service, Depends(get_service)]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return ""
    return next((found for item in node.slice.elts if (found := _depends(item))), "")


def _contains(root: ast.expr, node: ast.Call) -> bool:
    return root is node or (isinstance(root, ast.Call) and (node in root.args or _contains_chain(root, node)))


def _contains_chain(root: ast.expr, node: ast.Call) -> bool:
    while isinstance(root, (ast.Call, ast.Attribute, ast.Await)):
        root = root.func if isinstance(root, ast.Call) else root.value
        if root is node:
            return True
    return False


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)


def _name(default: ast.expr | None) -> str:
    """Return the name that a parameter has as its default: that of a function, maybe."""
    return default.id if isinstance(default, ast.Name) else ""


def _is_constant(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
