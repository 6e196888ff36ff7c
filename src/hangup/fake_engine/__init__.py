"""The fake engine (stand-in): no model, but slots, a queue, prefill, a set pace, many APIs, faults on demand, exact counters.

`make run` serves it, and the tests measure against it. It shares no code with the gateway, so that a bug in one cannot hide
in the other.
"""
