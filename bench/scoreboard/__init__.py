"""make scoreboard: engines and gateways that run on this machine, each probed in the same way, ours among them.

The gateways stand in front of the stand-in engine, which stops as soon as its own connection closes: what is computed for
nobody behind them is theirs. The real engines are those that `make test-engines` has installed.
"""
