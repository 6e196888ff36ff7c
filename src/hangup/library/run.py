"""`hangup.run` and `@hangup.tethered`: tie work that returns a single result to its client."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from hangup.core.reasons import Outcome
from hangup.library.ended import CallEnded, OnEnd
from hangup.library.frameworks import adapter_for, is_request
from hangup.library.limits import CLIENT_SILENCE_S, GRACE_S, Limits, check_functions
from hangup.library.sources import discard
from hangup.library.tether import Abort, Tether
from hangup.library.threads import call_in_thread
from hangup.library.token import CancelToken

T = TypeVar("T")
Handler = TypeVar("Handler", bound=Callable[..., Any])


async def run(
    request: Any,
    work: Awaitable[T] | Callable[[CancelToken], T],
    *,
    total_s: float | None = None,
    client_silence_s: float | None = CLIENT_SILENCE_S,
    grace_s: float = GRACE_S,
    abort: Abort | None = None,
    token: CancelToken | None = None,
    on_end: OnEnd | None = None,
) -> T:
    """Await `work` for as long as the client waits. If `work` is a function, it runs in a thread and gets a `CancelToken` to
    check.

    If the client disconnects or the time runs out, cancel the work, call `abort()`, and raise an error that the framework
    answers with the right status (a 499 reaches nobody, but is logged). Errors of the work itself pass through.
    """
    try:
        limits = Limits(None, None, total_s, None, None, client_silence_s, grace_s)
        check_functions(abort=abort, on_end=on_end)
        adapter = adapter_for(request)
        watch = adapter.watch(request, limits)
    except BaseException:
        discard(work)
        raise
    tether = Tether(limits, abort, token, on_end)
    result = await tether.run(watch, _work(tether, work))
    assert tether.ended is not None
    if tether.ended.outcome is Outcome.COMPLETED:
        return result  # type: ignore[no-any-return]
    if tether.error is not None:
        raise tether.error
    reason = tether.call.reason
    assert reason is not None
    raise adapter.error(CallEnded(tether.ended, reason.message), reason)


async def _work(tether: Tether, work: Any) -> Any:
    if inspect.isawaitable(work):
        result = await work
    else:
        result = await call_in_thread(work, tether.token, lambda name: setattr(tether, "engine_name", name))
    if not tether.call.ended:
        tether.progressed(0)
    return result


@overload
def tethered(handler: Handler) -> Handler: ...
@overload
def tethered(
    *,
    total_s: float | None = None,
    client_silence_s: float | None = CLIENT_SILENCE_S,
    grace_s: float = GRACE_S,
    abort: Abort | None = None,
    on_end: OnEnd | None = None,
) -> Callable[[Handler], Handler]: ...
def tethered(
    handler: Any = None,
    *,
    total_s: float | None = None,
    client_silence_s: float | None = CLIENT_SILENCE_S,
    grace_s: float = GRACE_S,
    abort: Abort | None = None,
    on_end: OnEnd | None = None,
) -> Any:
    """Tie a whole handler to its client: `@hangup.tethered` or `@hangup.tethered(total_s=60)`, below the route's decorator."""
    Limits(None, None, total_s, None, None, client_silence_s, grace_s)  # a wrong value shows here, not at the first request
    check_functions(abort=abort, on_end=on_end)
    options = {"total_s": total_s, "client_silence_s": client_silence_s, "grace_s": grace_s, "abort": abort, "on_end": on_end}
    if handler is None:
        return functools.partial(_tether, options=options)
    return _tether(handler, options)


def _tether(handler: Any, options: dict[str, Any]) -> Any:
    name = getattr(handler, "__qualname__", repr(handler))
    if not inspect.iscoroutinefunction(handler):
        raise TypeError(f"@hangup.tethered is for async handlers; {name} is not async (see hangup.run for threads)")
    signature = _signature(handler)
    if _takes(signature, (), ("WebSocket",)):
        raise TypeError(f"@hangup.tethered is for requests; {name} serves a WebSocket: use hangup.stream or hangup.run in it")
    takes_request = _takes(signature, ("request", "scope"), ("Request", "BaseRequest", "HttpRequest", "ASGIRequest"))
    hidden = None if takes_request else _request_parameter()

    @functools.wraps(handler)
    async def wrapper(*arguments: Any, **named: Any) -> Any:
        request = named.pop(hidden.name) if hidden is not None else _find_request(arguments, named)
        return await run(request, handler(*arguments, **named), **options)

    if hidden is not None:
        parameters = [*signature.parameters.values(), hidden]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {**handler.__annotations__, hidden.name: hidden.annotation}
    return wrapper


def _signature(handler: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(handler, eval_str=True)
    except NameError:  # the annotation uses names that only a type checker imports: keep annotations as strings
        return inspect.signature(handler)


def _takes(signature: inspect.Signature, names: tuple[str, ...], annotations: tuple[str, ...]) -> bool:
    """Return whether a handler has a parameter of one of these names, or annotated with one of these classes."""
    for parameter in signature.parameters.values():
        annotation = parameter.annotation
        annotated = annotation.rpartition(".")[2] if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        if parameter.name in names or annotated in annotations:
            return True
    return False


def _request_parameter() -> inspect.Parameter:
    """Return the extra parameter through which FastAPI passes the request, for handlers that do not take it."""
    from starlette.requests import Request  # noqa: PLC0415 - only FastAPI handlers come here

    return inspect.Parameter("hangup_request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)


def _find_request(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if len(arguments) == 3 and isinstance(arguments[0], dict) and "type" in arguments[0]:
        return arguments[0], arguments[1]  # plain ASGI: scope, receive, send
    for value in (*arguments, *named.values()):
        if is_request(value):
            return value
    raise TypeError("@hangup.tethered found no request among the handler's arguments; add a parameter for it")
