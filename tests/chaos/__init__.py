"""Chaos: real gateways on one store and real engines, under load and faults that come from a seed.

    world    the processes, and what can be done to them
    clock    a clock that can be set, for gateways alone
    load     clients: each writes down what it was promised and what it got
    faults   what happens to gateways, engines and the store, and how it is undone
    damage   the last of it: a store that no waiting mends
    checks   what must be true at the end, and at rest

`make chaos ARGS="--seed 7 --minutes 4"`.
"""
