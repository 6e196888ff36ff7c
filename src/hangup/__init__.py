"""hangup: when the client hangs up, the GPU stops."""

__version__ = "0.1.0"
