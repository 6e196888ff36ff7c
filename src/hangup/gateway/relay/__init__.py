"""Relays: they pass an engine's answer to the client, in the same callback of the event loop that received the bytes.

The relay depends on the answer: `passthrough` for bytes that are not parsed, `stream` for a stream of events (the hottest code
of the gateway), and `assemble` for a stream that becomes one JSON answer.
"""
