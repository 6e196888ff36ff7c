"""Real engines for the tests, on a CPU, with tiny models of random weights made locally: `python -m tools.engines DIR`."""
