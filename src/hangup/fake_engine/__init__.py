"""A stand-in engine: no model, but slots, a queue, prefill and a set pace, many APIs, faults on demand, exact counters.

It is what `make run` serves and what the tests measure against. It shares no code with the gateway, so that a
mistake in one cannot hide in the other.
"""
