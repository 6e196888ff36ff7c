"""One small module per kind of engine. To add an engine, add a module here and its test: modules are discovered by
themselves."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from hangup.gateway.backends.adapters.base import Abort, EngineAdapter, Facts, Get, Seen


def _found() -> Iterator[EngineAdapter]:
    """Yield one adapter for each kind of engine that a module of this package defines."""
    for module in iter_modules(__path__):
        for value in vars(import_module(f"{__name__}.{module.name}")).values():
            if (
                isinstance(value, type)
                and issubclass(value, EngineAdapter)
                and value.name
                and value.__module__.endswith(module.name)
            ):
                yield value()


ADAPTERS: dict[str, EngineAdapter] = {a.name: a for a in sorted(_found(), key=lambda adapter: (adapter.order, adapter.name))}
GENERIC: EngineAdapter = ADAPTERS["openai"]
AUTO = "auto"  # ask the backend what it is


def provider_of(host: str) -> EngineAdapter | None:
    """Return the adapter of the provider that serves this host, or None."""
    return next((adapter for adapter in ADAPTERS.values() if adapter.hosts and host.endswith(adapter.hosts)), None)


async def recognise(host: str, get: Get) -> tuple[EngineAdapter, Facts]:
    """Find out with GET requests alone what a backend is and what it can do; fall back to the generic adapter."""
    found = provider_of(host)
    if found is not None:
        return found, await found.inspect(get) or Facts()
    models = await get("/v1/models")
    sure = [adapter for adapter in ADAPTERS.values() if adapter.recognises(models)]
    for adapter in sure[:1] or [adapter for adapter in ADAPTERS.values() if adapter.inspect_unknown]:
        facts = await adapter.inspect(get)
        if facts is not None:
            return adapter, facts
    return GENERIC, await GENERIC.inspect(get) or Facts()


__all__ = ["ADAPTERS", "AUTO", "GENERIC", "Abort", "EngineAdapter", "Facts", "Get", "Seen", "provider_of", "recognise"]
