"""The gateway's decisions, as plain state machines without sockets, clocks, tasks or logs. The caller passes the time in."""
