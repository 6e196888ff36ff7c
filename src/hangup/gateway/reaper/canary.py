"""The canary: one short call of the gateway's own, which a backend must answer before it gets clients' calls again."""

from __future__ import annotations

import orjson

from hangup.errors import EngineFault, OutOfResources
from hangup.gateway.backends.backend import Backend
from hangup.gateway.backends.fetch import fetch
from hangup.gateway.backends.health import see


async def send(backend: Backend, timeout_s: float) -> str:
    """Send the canary call. Return what is wrong with the backend; "" if it answered. Raises `OutOfResources` if this process
    could not send it."""
    models = await see(backend, "/v1/models", timeout_s)
    model = next((str(row["id"]) for row in models.rows if "id" in row), "")
    request = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    try:
        answer = await fetch(backend, "POST", "/v1/chat/completions", orjson.dumps(request), timeout_s=timeout_s)
    except OutOfResources:
        raise
    except EngineFault as fault:
        return fault.detail
    # An engine that rejects our request is alive.
    return f"the engine returned status {answer.head.status}" if answer.head.status >= 500 else ""
