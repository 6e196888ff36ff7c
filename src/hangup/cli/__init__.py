"""The command line. Commands print data to stdout and messages to stderr."""
