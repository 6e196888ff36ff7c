"""Tools for people who work on hangup itself."""
