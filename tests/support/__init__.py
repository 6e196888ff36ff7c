"""Real processes and real sockets for the tests."""
