"""Real engines for the tests, on a CPU, with tiny models of random weights made on the spot: `python -m tools.engines DIR`."""
