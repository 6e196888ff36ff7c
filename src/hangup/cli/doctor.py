"""`hangup doctor URL`: reports what a live engine is and what protection it allows. Sends GET requests only."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import sys
from typing import Any

from hangup.cli.table import printable
from hangup.config import BackendLimits, BackendSettings, LimitSettings, secrets
from hangup.config.addresses import url_problem
from hangup.core.reaper import EngineStatus
from hangup.errors import EngineFault, HangupError
from hangup.gateway.backends.adapters import ADAPTERS, AUTO, GENERIC
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.fetch import fetch
from hangup.gateway.backends.health import ask_models, check, learn, see
from hangup.terminal import count, is_coloured, paint

_MODELS_SHOWN = 5
_EXAMPLES = """\
examples:
  hangup doctor http://127.0.0.1:8000
  hangup doctor http://127.0.0.1:8000 --engine vllm --api-key-env VLLM_KEY
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        description="Inspects a running engine with GET requests only and shows how hangup can stop and verify its work.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="URL of the engine")
    parser.add_argument("--engine", choices=[AUTO, *ADAPTERS], default=AUTO, help="kind of engine (default: auto, detect it)")
    parser.add_argument(
        "--api-key-env", default="", metavar="NAME", help="environment variable that holds the engine's API key"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if problem := url_problem(arguments.url):
        raise HangupError(f"URL: {problem}")
    settings = BackendSettings(url=arguments.url, engine=arguments.engine, api_key_env=arguments.api_key_env)
    try:
        key = secrets.key_of(settings, os.environ, frozenset(), LimitSettings().secret_command_s)
    except secrets.SecretProblem as problem:
        raise HangupError(str(problem)) from None
    return asyncio.run(_examine(dataclasses.replace(settings, key=key), BackendLimits(), as_json=arguments.json))


async def _examine(settings: BackendSettings, limits: BackendLimits, *, as_json: bool) -> int:
    backend = Backend(settings, limits, asyncio.get_running_loop())
    try:
        fault = await ask_what_it_is(backend)
        if fault is not None:
            hint = "\n  hint: if it is an engine, name its kind with --engine" if backend.facts_known else ""
            raise HangupError(f"{settings.url}: {fault}{hint}")
        status = None
        if backend.adapter.status_path:
            answer = await see(backend, backend.adapter.status_path, limits.status_timeout_s)
            status = backend.adapter.read_status(answer)
        if as_json:
            print(json.dumps(_facts(backend, status), indent=2))
        else:
            for name, value in _findings(backend, status):
                print(f"{paint(f'{name:<13}', 'dim', is_coloured(sys.stdout))}{printable(value)}")
        return 0
    finally:
        backend.pool.close()


async def ask_what_it_is(backend: Backend) -> str | None:
    """Ask an engine for its kind, its capacity and its models; return why that is not possible, or why it is no engine, or
    None."""
    fault = await check(backend)
    if fault is not None:
        return fault
    try:
        if await _is_gateway(backend):
            return "it is a hangup gateway, not an engine"
    except EngineFault as error:
        return error.detail
    while not backend.facts_known:  # a busy engine may leave a question unanswered; it is asked a few times at most
        await learn(backend, backend.limits.health_timeout_s)
    await ask_models(backend)
    if backend.settings.engine == AUTO and backend.adapter is GENERIC and not backend.model_rows:
        return await _why_no_engine(backend)
    return None


async def _is_gateway(backend: Backend) -> bool:
    """Return whether this is hangup itself, which lists the models of its engines as if they were its own."""
    answer = await fetch(backend, "GET", "/hangup-doctor", timeout_s=backend.limits.health_timeout_s)
    return b"x-hangup-reason" in answer.head.fields


async def _why_no_engine(backend: Backend) -> str:
    """Say why something that answers, and is of no kind that hangup knows, is probably no engine: it lists no models."""
    status = (await see(backend, "/v1/models", backend.limits.health_timeout_s)).status
    if status in (401, 403):
        return f"it requires an API key (GET /v1/models returned status {status}); use --api-key-env"
    answered = f"returned status {status}" if status and status != 200 else "returned no list of models"
    return f"this is no LLM engine that hangup recognises: GET /v1/models {answered}"


def _facts(backend: Backend, status: EngineStatus | None) -> dict[str, Any]:
    adapter, facts = backend.adapter, backend.facts
    return {
        "url": backend.settings.url,
        "engine": adapter.name,
        "version": facts.version or None,
        "slots": facts.slots or None,
        "context": facts.context or None,
        "kv_tokens": facts.kv_tokens or None,
        "stops_by": adapter.stops_by,
        "abort_by_id": facts.can_abort,
        "verified": status is not None,
        "verified_exactly": status is not None and adapter.pins_slots,
        "running": status.running if status is not None else None,
        "waiting": status.waiting if status is not None else None,
        "models": [row["id"] for row in backend.model_rows] if backend.model_rows is not None else None,
        "hints": list(facts.hints),
    }


def _findings(backend: Backend, status: EngineStatus | None) -> list[tuple[str, str]]:
    adapter, facts = backend.adapter, backend.facts
    capacity = [(facts.slots, "slots"), (facts.context, "tokens of context"), (facts.kv_tokens, "tokens of cache")]
    if status is None:
        verify = f"no: hangup keeps the slot reserved for {adapter.blind_hold_s:g} s after a hang-up, then reuses it"
    else:
        how = "exactly, per slot" if adapter.pins_slots else "by the engine's counts; exact while hangup is its only client"
        verify = f"{how} ({adapter.status_path.partition('?')[0]}, zombie after {adapter.grace_s + adapter.lag_s:g} s)"
    rows = [
        ("engine", f"{adapter.title} {facts.version}".rstrip()),
        ("capacity", ", ".join(f"{count(number)} {what}" for number, what in capacity if number) or "not reported"),
        ("stopped by", adapter.stops_by),
        ("abort by id", "yes" if facts.can_abort else "no"),
        ("verified", verify),
    ]
    if backend.model_rows is not None:
        names = ", ".join(row["id"] for row in backend.model_rows[:_MODELS_SHOWN]) or "none"
        more = f" and {len(backend.model_rows) - _MODELS_SHOWN} more" if len(backend.model_rows) > _MODELS_SHOWN else ""
        rows.append(("models", f"{names}{more}; {'no other names' if backend.offer().exact else 'other names are forwarded'}"))
    if status is not None:
        rows.append(("now", f"{status.running} running, {status.waiting} waiting"))
    return rows + [("hint", hint) for hint in facts.hints]
