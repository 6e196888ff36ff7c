"""The parts of `hangup probe` that belong to the terminal."""
