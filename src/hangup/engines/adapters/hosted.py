"""Hosted APIs. Closing the connection is all that a caller can do about a running answer; they scale by themselves, so that no
place is kept for what may still run."""

from __future__ import annotations

from hangup.engines.adapters.base import Adapter, Facts, Get


class _Hosted(Adapter):
    blind_hold_s = 0.0

    async def inspect(self, get: Get) -> Facts:
        return Facts(hints=("a hosted API: what still runs after a hang-up is not told, and is billed",))


class OpenAIHosted(_Hosted):
    name = "openai-hosted"
    title = "api.openai.com"


class AnthropicHosted(_Hosted):
    name = "anthropic-hosted"
    title = "api.anthropic.com"
