"""The HTTP server of `hangup engine`: the built-in engine by itself, behind the same strict HTTP parsing as the gateway."""
