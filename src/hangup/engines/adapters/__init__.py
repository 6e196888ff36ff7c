"""One small file per kind of engine; this is their list."""

from __future__ import annotations

from hangup.engines.adapters.base import Abort, Adapter
from hangup.engines.adapters.openai import OpenAICompatible
from hangup.engines.adapters.standin import StandIn

ADAPTERS: dict[str, Adapter] = {adapter.name: adapter for adapter in (OpenAICompatible(), StandIn())}
AUTO = "auto"  # ask the backend what it is

__all__ = ["ADAPTERS", "AUTO", "Abort", "Adapter"]
