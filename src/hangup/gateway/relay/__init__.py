"""The pump: what an engine sends goes to the client in the same turn of the loop.

Which relay takes an answer depends on what it is: `passthrough` for bytes that mean nothing to us, `stream` for a stream of
events (the hottest code of the gateway), `assemble` for a stream that becomes one JSON answer.
"""
