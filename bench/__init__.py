"""Measurements: each figure is a ratio taken in one run on one machine. See bench/README.md."""
