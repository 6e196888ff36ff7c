"""`hangup demo`: the same impatient crowd on the same engine, first behind a plain proxy, then behind hangup.

Engine, proxy and gateway are processes of their own; the crowd is in this one. Tokens and engine time come from the engine's
own counters, what arrived from the clients.
"""
