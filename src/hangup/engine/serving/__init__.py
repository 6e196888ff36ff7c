"""`hangup engine`: the embedded engine by itself, behind the same strict HTTP edge as the gateway."""
