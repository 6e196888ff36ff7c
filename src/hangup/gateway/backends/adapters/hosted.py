"""Hosted APIs. A caller can only close the connection to stop a running answer. They scale by themselves, so no slot stays
reserved for work that may still run."""

from __future__ import annotations

from hangup.gateway.backends.adapters.base import EngineAdapter, Facts, Get


class _HostedAdapter(EngineAdapter):
    blind_hold_s = 0.0
    models_rest_s = 300.0
    hosted = True
    order = 80

    async def inspect(self, get: Get) -> Facts:
        return Facts(hints=("a hosted API: it does not report what still runs after a hang-up, and bills it",))


class OpenAIHostedAdapter(_HostedAdapter):
    name = "openai-hosted"
    title = "api.openai.com"
    hosts = (".openai.com",)
    apis = frozenset(["openai"])
    stripped_headers = EngineAdapter.stripped_headers | {b"x-api-key"}  # that key is meant for another provider

    def key_headers(self, key: bytes, anthropic: bool) -> bytes:
        return super().key_headers(key, anthropic=False)


class AnthropicHostedAdapter(_HostedAdapter):
    name = "anthropic-hosted"
    title = "api.anthropic.com"
    hosts = (".anthropic.com",)
    apis = frozenset(["anthropic"])
    models_headers = [(b"anthropic-version", b"2023-06-01")]

    def key_headers(self, key: bytes, anthropic: bool) -> bytes:
        return b"x-api-key: %b\r\n" % key  # the API refuses it as a bearer token
