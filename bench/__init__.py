"""Benchmarks: each figure is a ratio measured in one run on one machine. See bench/README.md."""
