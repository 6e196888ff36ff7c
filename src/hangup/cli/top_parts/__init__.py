"""The parts of `hangup top`: `views` makes rows of what the gateway tells, `state` says what a key does, `screen` draws."""
