"""Any OpenAI-compatible engine of which nothing more is known: cutting the connection is all that can be done."""

from __future__ import annotations

from hangup.engines.adapters.base import Adapter


class OpenAICompatible(Adapter):
    name = "openai"
    title = "any OpenAI-compatible engine; stopped by cutting its connection"
    # llama-server keeps a stream alive behind this id after the client has left.
    stripped_headers = frozenset([b"x-conversation-id"])
