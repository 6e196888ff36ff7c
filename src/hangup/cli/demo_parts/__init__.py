"""The parts of `hangup demo`: the same impatient clients on the same engine, first behind a plain proxy, then behind hangup.

The engine, the proxy and the gateway run in their own processes; the clients run in this one. The engine's own counters give
the tokens and the engine time; the clients count the tokens that reached them.
"""
