"""The decisions, as plain state machines: no sockets, clocks, tasks or logs in here. Time is passed in."""
