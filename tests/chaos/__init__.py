"""Chaos tests: real gateways on one store and real stand-in engines, under load and faults drawn from a seed.

    world    the processes, and what a test can do to them
    clock    a settable clock, for the gateways alone
    load     clients that record what they were promised and what they got
    faults   faults of gateways, engines and the store, and how each is undone
    damage   the last step: a store damaged beyond repair
    checks   what must be true at the end, and when everything is idle

`make chaos ARGS="--seed 7 --minutes 4"`.
"""
